"""Plots of one experiment: curves that it has, and published figures beside ours, one drawing for each unit."""

from collections.abc import Sequence

from serving.sim.paper.reproduction import Reproduced
from serving.sim.paper.rows import Curve, Plot, Row
from serving.sim.report.plots import AxisOf, Comparison, Limit, Series, bars, lines

_COLORS = ("blue", "green", "violet", "red")
_WIDTH = 560


def part_plots(part: Reproduced) -> list[str]:
    """Drawings as SVG."""
    name = part.experiment.name
    drawn = [_curves(f"{name}-curve-{number}", plot) for number, plot in enumerate(part.findings.plots)]
    by_unit: dict[str, list[Row]] = {}
    for row in part.findings.rows:
        if row.ours is not None:
            by_unit.setdefault(row.unit, []).append(row)
    for number, (unit, rows) in enumerate(by_unit.items()):
        drawn.append(_bars(f"{name}-bars-{number}", unit, rows))
    return drawn


def _bars(name: str, unit: str, rows: Sequence[Row]) -> str:
    pairs = [Comparison(row.label, row.published, row.ours) for row in rows if row.ours is not None]
    return bars(name, f"published and ours, {unit}", pairs, unit=unit, width=_WIDTH)


def _curves(name: str, plot: Plot) -> str:
    series: list[Series] = []
    ours = 0
    for curve in plot.curves:
        if curve.published:
            series += _points(curve)
        else:
            series.append(Series(curve.name, curve.xs, curve.ys, color=_COLORS[ours % len(_COLORS)]))
            ours += 1
    return lines(
        name, plot.title, series, x=AxisOf(label=plot.x_label), y=AxisOf(label=plot.y_label),
        limits=[Limit(label, value) for label, value in plot.limits], width=_WIDTH, height=280,
    )  # fmt: skip


def _points(curve: Curve) -> list[Series]:
    """Published figures are points: each is a series of its own, and only the first one stands in the legend."""
    return [
        Series(curve.name if number == 0 else f"_{number}", (x,), (y,), color="orange")
        for number, (x, y) in enumerate(zip(curve.xs, curve.ys, strict=True))
    ]

"""Charts of one experiment: its curves, and published values next to ours, one chart for each unit."""

from collections.abc import Sequence

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Chart, Key, Limit, ScatterChart, ScatterTrace, compact
from serving.tools.paper import texts
from serving.tools.paper.reproduction import Reproduced
from serving.tools.paper.rows import Curve, Plot, Row

_COLORS = ("blue", "green", "violet", "red")
_LANE_PX = 34
_ROOM = 1.18
"""Factor on the longest bar, for the error written behind it."""


def part_charts(part: Reproduced) -> list[Chart]:
    """All charts of an experiment."""
    name = part.experiment.name
    charts: list[Chart] = [_curves(f"{name}-curve-{number}", plot) for number, plot in enumerate(part.findings.plots)]
    by_unit: dict[str, list[Row]] = {}
    for row in part.findings.rows:
        if row.ours is not None:
            by_unit.setdefault(row.unit, []).append(row)
    charts += [_bars(f"{name}-bars-{number}", unit, rows) for number, (unit, rows) in enumerate(by_unit.items())]
    return charts


def _bars(chart_id: str, unit: str, rows: Sequence[Row]) -> BarChart:
    """Published and ours under each other in a lane for each row, with the error behind."""
    highest = max([max(row.published, row.ours or 0.0) for row in rows]) or 1.0
    bars = []
    for lane, row in enumerate(rows):
        ours = row.ours or 0.0
        said = f"{row.label}: published {texts.published_text(row)}, ours {texts.ours_text(row)} {unit}"
        error = numbers.change((ours - row.published) / row.published if row.published else None)
        longer = ours >= row.published
        bars.append(Bar(lane, 0.0, row.published, 0, said, after="" if longer else error))
        bars.append(Bar(lane, 0.0, ours, 1, said, after=error if longer else "", part=1))
    return BarChart(
        id=chart_id,
        title=f"published and ours, {unit}",
        x=Axis(unit="number", label=unit, low=0.0, high=_ROOM * highest),
        lanes=[row.label for row in rows],
        lane_px=_LANE_PX,
        parts=2,
        keys=[Key(name="published", color="grey"), Key(name="ours", color="blue")],
        bars=bars,
    )


def _curves(chart_id: str, plot: Plot) -> ScatterChart:
    """Our curves, and published figures as points."""
    ours = [curve for curve in plot.curves if not curve.published]
    colors = {curve.name: _COLORS[number % len(_COLORS)] for number, curve in enumerate(ours)}
    xs = [float(x) for curve in plot.curves for x in curve.xs]
    return ScatterChart(
        id=chart_id,
        title=plot.title,
        note=plot.y_label,
        x=Axis(unit="number", label=plot.x_label, low=min(xs, default=0.0), high=1.02 * max(xs, default=1.0)),
        y=Axis(unit="number"),
        traces=[_trace(curve, colors.get(curve.name, "orange")) for curve in plot.curves],
        limits=[Limit(name=label, value=value) for label, value in plot.limits],
    )


def _trace(curve: Curve, color: str) -> ScatterTrace:
    return ScatterTrace(
        name=curve.name,
        xs=[compact(x) or 0.0 for x in curve.xs],
        ys=[compact(y) or 0.0 for y in curve.ys],
        color="orange" if curve.published else color,
        joined=not curve.published,
    )

"""Plots that several reports draw: curves, published figures beside ours, and NPUs against goodput. Each is an SVG."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from serving.sim.report import axis, numbers
from serving.sim.report.axis import Unit
from serving.sim.report.latencies import Floats
from serving.sim.report.svg import LEFT_PX, PALETTE, RIGHT_PX, empty, legend, panel, style, to_svg

WIDTH, HEIGHT = 480, 215
PLOT_LEFT, PLOT_RIGHT = LEFT_PX / WIDTH, 1 - RIGHT_PX / WIDTH
"""Where the plot area of `lines` begins and ends, as parts of the drawing's width."""
_BAR_ROW_PX = 40
_LETTER_PX = 6.2
"""Mean width of a letter at the plots' font size; for room that is left beside an axis."""
_PLOT_BUCKETS = 260
"""Two points each are more than a plot's width can show."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. `color`: a name of the palette. `steps`: a value holds until the next. nan leaves a gap."""

    name: str
    xs: Sequence[float] | Floats
    ys: Sequence[float] | Floats
    color: str = "blue"
    dashed: bool = False
    steps: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A value that was to be kept: a line across the plot, over the x axis if `vertical`."""

    name: str
    value: float
    vertical: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that matters on the x axis."""

    at: float
    color: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class AxisOf:
    """One axis: unit, label, and the range that is shown; None = what the values need."""

    unit: Unit = "count"
    label: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published figure and ours. `error`: (ours - published) / published; shown behind the bars."""

    label: str
    published: float
    ours: float

    @property
    def error(self) -> float:
        return (self.ours - self.published) / self.published if self.published else math.nan


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan: what it costs, what it gives, whether it holds the SLOs, and whether it is the one to take."""

    label: str
    npus: int
    goodput_per_s: float
    holds: bool
    best: bool = False


def lines(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    x: AxisOf,
    y: AxisOf,
    limits: Sequence[Limit] = (),
    marks: Sequence[Mark] = (),
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """Curves over a common axis; long ones are thinned to what can be seen.

    Args:
        name: unique in its page.
    """
    with style():
        figure, axes = panel(width, height, title, bottom=40 if x.label else 28)
        shown = [one for one in series if np.isfinite(np.asarray(one.ys, dtype=float)).any()]
        if not shown:
            empty(axes)
            return to_svg(figure, name, title)
        for one in shown:
            _curve(axes, one)
        _ranges(axes, x, y, shown, max((one.value for one in limits if not one.vertical), default=0.0))
        for limit in limits:
            _limit(axes, limit)
        low, high = axes.get_xlim()
        for mark in marks:
            if low <= mark.at <= high:
                axes.axvline(mark.at, color=PALETTE[mark.color], linewidth=1, dashes=(3, 2) if mark.dashed else (1, 0))
        _label(axes, x, y)
        legend(figure, axes)
        return to_svg(figure, name, title)


def bars(name: str, title: str, rows: Sequence[Comparison], *, unit: str = "", width: int = 760) -> str:
    """Published figures and ours as pairs of bars, one pair a row, with the error of each in per cent."""
    left = min(260, round(_LETTER_PX * max((len(row.label) for row in rows), default=0)) + 18)
    with style():
        height = 86 + _BAR_ROW_PX * max(1, len(rows))
        figure, axes = panel(width, height, title, left=left, right=64, bottom=40 if unit else 28)
        if not rows:
            empty(axes)
            return to_svg(figure, name, title)
        at = np.arange(len(rows), dtype=float)
        axes.barh(at - 0.18, [row.published for row in rows], 0.32, color=PALETTE["grey"], label="published")
        axes.barh(at + 0.18, [row.ours for row in rows], 0.32, color=PALETTE["blue"], label="ours")
        for position, row in zip(at, rows, strict=True):
            axes.annotate(
                numbers.error(row.error), (max(row.published, row.ours), position), (6, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_yticks(at, [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.02 * max((max(row.published, row.ours) for row in rows), default=1.0) or 1.0)
        axis.format_axis(axes.xaxis, "count", ticks=6)
        axes.set_xlabel(unit)
        legend(figure, axes)
        return to_svg(figure, name, title)


def pareto(name: str, title: str, candidates: Sequence[Candidate], *, width: int = 760, height: int = 360) -> str:
    """Plans as points: NPUs to the right, goodput upwards; the front of those that nothing beats is joined."""
    with style():
        figure, axes = panel(width, height, title, left=64, right=30, top=60, bottom=44)
        if not candidates:
            empty(axes)
            return to_svg(figure, name, title)
        front = pareto_front(candidates)
        axes.plot(
            [one.npus for one in front], [one.goodput_per_s for one in front], color=PALETTE["line"],
            drawstyle="steps-post", zorder=1, label="nothing cheaper gives more",
        )  # fmt: skip
        tooltips = {}
        kinds = (
            ("holds the SLOs", "blue", True, False),
            ("misses them", "grey", False, False),
            ("best", "green", None, True),
        )
        for kind, color, holds, best in kinds:
            members = [one for one in candidates if one.best == best and (best or one.holds == holds)]
            for position, one in enumerate(members):
                group = f"{kind.split()[0]}-{position}"
                axes.plot(
                    [one.npus], [one.goodput_per_s], "o", color=PALETTE[color], markersize=9 if best else 6, zorder=3,
                    gid=group, markeredgecolor=PALETTE["card"], label="" if position else kind,
                )  # fmt: skip
                tooltips[group] = f"{one.label}: {one.npus} NPUs, {numbers.figure(one.goodput_per_s)} requests/s"
        for one in candidates:
            if one.best:
                _name_best(axes, one, candidates)
        axis.from_zero(axes, max(one.goodput_per_s for one in candidates))
        _room(axes, [float(one.npus) for one in candidates])
        axis.format_axis(axes.xaxis, "count", ticks=7, whole=True)
        _label(axes, AxisOf(label="NPUs"), AxisOf(label="requests per s within the SLOs"))
        legend(figure, axes)
        return to_svg(figure, name, title, tooltips)


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Plans of which no other gives as much with fewer NPUs, cheapest first."""
    front: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (one.npus, -one.goodput_per_s, one.label)):
        if not front or one.goodput_per_s > front[-1].goodput_per_s:
            front.append(one)
    return front


def thin(xs: Floats, ys: Floats, buckets: int = _PLOT_BUCKETS) -> tuple[Floats, Floats]:
    """A long curve with fewer points that looks the same: the lowest and the highest of each bucket, and both ends.

    Args:
        xs: ascending.
    """
    if len(xs) <= 2 * buckets + 2:
        return xs, ys
    keep = {0, len(xs) - 1}
    edges = np.linspace(0, len(xs), buckets + 1).astype(int)
    for start, end in itertools.pairwise(edges.tolist()):
        part = ys[start:end]
        if np.isnan(part).all():
            keep.add(int(start))
        else:
            keep.update((int(start + np.nanargmin(part)), int(start + np.nanargmax(part))))
    chosen = np.array(sorted(keep))
    return xs[chosen], ys[chosen]


def _curve(axes: Axes, one: Series) -> None:
    xs, ys = thin(np.asarray(one.xs, dtype=float), np.asarray(one.ys, dtype=float))
    color = PALETTE[one.color]
    single = len(xs) == 1
    if one.filled:
        axes.fill_between(xs, ys, 0, color=color, alpha=0.14, linewidth=0, step="post" if one.steps else None)
    axes.plot(
        xs, ys, color=color, label=one.name, linestyle=(0, (4, 2)) if one.dashed else "-",
        drawstyle="steps-post" if one.steps else "default", marker="o" if single else "", markersize=4,
    )  # fmt: skip


def _ranges(axes: Axes, x: AxisOf, y: AxisOf, shown: Sequence[Series], highest_limit: float) -> None:
    """The part that is shown: all values, and the limits across."""
    if x.log:
        axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low if x.low is None else x.low, high if x.high is None else x.high)
    highest = max(float(np.nanmax(np.asarray(one.ys, dtype=float))) for one in shown)
    axis.from_zero(axes, highest, least=highest_limit)
    if y.high is not None:
        axes.set_ylim(y.low or 0.0, y.high)


def _limit(axes: Axes, limit: Limit) -> None:
    """A red line with its name (in the legend, if it lies across).

    One outside the x range that is shown says on which side it is.
    """
    color = PALETTE["red"]
    if not limit.vertical:
        axes.axhline(limit.value, color=color, linewidth=1.2, linestyle=(0, (4, 2)), label=limit.name)
        return
    low, high = axes.get_xlim()
    if not low <= limit.value <= high:
        text, at, side = (f"{limit.name} →", 0.99, "right") if limit.value > high else (f"← {limit.name}", 0.01, "left")
        axes.text(at, 0.04, text, color=color, transform=axes.transAxes, ha=side, va="bottom")
        return
    axes.axvline(limit.value, color=color, linewidth=1.2, linestyle=(0, (4, 2)))
    position = axes.transAxes.inverted().transform(axes.transData.transform((limit.value, 0)))[0]
    to_right = position < 0.5
    axes.annotate(
        limit.name, (limit.value, 0.04), (5 if to_right else -5, 0), xycoords=axes.get_xaxis_transform(),
        textcoords="offset points", color=color, ha="left" if to_right else "right", va="bottom",
    )  # fmt: skip


def _label(axes: Axes, x: AxisOf, y: AxisOf) -> None:
    """Ticks of both axes; the y label stands in the plot's upper left corner, where it needs no turned head."""
    axis.format_axis(axes.xaxis, x.unit, ticks=7)
    axis.format_axis(axes.yaxis, y.unit, ticks=4)
    axes.set_xlabel(x.label, labelpad=3)
    if y.label:
        axes.text(
            0.0, 1.0, y.label, transform=axes.transAxes, color=PALETTE["soft"], va="bottom", ha="left", fontsize=10
        )


def _room(axes: Axes, xs: Sequence[float]) -> None:
    low, high = min(xs), max(xs)
    margin = 0.06 * (high - low) or max(1.0, 0.1 * high)
    axes.set_xlim(max(0.0, low - margin), high + margin)


def _name_best(axes: Axes, one: Candidate, candidates: Sequence[Candidate]) -> None:
    """The best plan's name beside its point, on the side that has room, away from the front: it rises to the right."""
    to_right = one.npus < (min(c.npus for c in candidates) + max(c.npus for c in candidates)) / 2
    axes.annotate(
        one.label, (one.npus, one.goodput_per_s), (9, -4) if to_right else (-9, 4), textcoords="offset points",
        va="top" if to_right else "bottom", ha="left" if to_right else "right", color=PALETTE["green"],
        fontweight="bold",
    )  # fmt: skip

"""Charts as plain values; the page's script draws them without knowing their meaning.

A chart is put into the page as JSON. Colours are names ("blue"), which the style sheet gives a value for light and dark
pages. Units are names too; the script formats numbers by them:

    "s" seconds, "clock" moments of a run, "per_s" a rate, "count", "share" (0..1 as per cent), "tokens", "number",
    "percentile" (see `percentile_position`)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

_DIGITS = 6
"""Significant digits kept in the page: far below what a plot can show, and half the size."""
PLOT_BUCKETS = 260
"""Two positions each are more than a plot's width can show."""


class Axis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One axis. `log`: drawn logarithmic from the start. `low`, `high`: what is shown; None = what the values need."""

    unit: str
    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One curve over a chart's common positions; None leaves a gap.

    `band`: down to the next line is filled. `steps`: a value holds until the next one.
    """

    name: str
    values: list[float | None]
    color: str
    dash: bool = False
    fill: bool = False
    band: bool = False
    steps: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit that was to be kept: a line across the plot, or up at a position if `vertical`."""

    name: str
    value: float
    vertical: bool = False


class Marks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Positions of events of one kind, each drawn as a vertical line."""

    name: str
    color: str
    xs: list[float]
    dash: bool = False


class LineChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="lines"):
    """Curves over common positions.

    Attributes:
        id: unique in the page. title, note: above the plot; the note describes the content in one line.
        xs: positions, ascending. bridge: gaps are joined by a straight line (curves sampled at different positions).
        group: charts of one group share cursor and zoom.
    """

    id: str
    title: str
    note: str = ""
    x: Axis
    y: Axis
    xs: list[float]
    lines: list[Line]
    limits: list[Limit] = []
    marks: list[Marks] = []
    bridge: bool = False
    group: str = ""


class ScatterTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Points with their own positions, joined in their order if `joined`, by horizontal and vertical lines if `steps`.

    `labels`: tooltip of each point; `marks`: short text next to each. One per point, or none. `large`: points that
    matter most. `bare`: only the line that joins them.
    """

    name: str
    xs: list[float]
    ys: list[float]
    color: str
    joined: bool = False
    steps: bool = False
    large: bool = False
    bare: bool = False
    labels: list[str] = []
    marks: list[str] = []


class ScatterChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="scatter"):
    """Points in the plane."""

    id: str
    title: str
    note: str = ""
    x: Axis
    y: Axis
    traces: list[ScatterTrace]
    limits: list[Limit] = []


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kind of bars: its name in the legend, and how it is filled."""

    name: str
    color: str
    alpha: float = 1.0


class Bar(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One bar, as an array in the page.

    Attributes:
        lane: which row, from above. key: which of the chart's keys.
        text: tooltip. name: written in it, if it fits. after: written after it.
        part: which of the lane's parts, from above.
    """

    lane: int
    start: float
    end: float
    key: int
    text: str = ""
    name: str = ""
    after: str = ""
    part: int = 0


class BarChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="bars"):
    """Horizontal bars in lanes: requests or faults over time, operators of a step, groups of figures.

    Attributes:
        lanes: their names. lane_texts: tooltip of a whole lane; lanes then have no visible names, and lanes without a
        bar in the zoomed range are hidden. parts: bars under each other in one lane. lane_px: height of a lane.
    """

    id: str
    title: str
    note: str = ""
    x: Axis
    lanes: list[str]
    lane_texts: list[str] = []
    lane_px: int
    parts: int = 1
    keys: list[Key]
    bars: list[Bar]
    limits: list[Limit] = []
    group: str = ""


Chart = LineChart | ScatterChart | BarChart


def compact(value: float | None) -> float | None:
    """A number with six significant digits; None for NaN and infinities, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def compact_all(values: Iterable[float | None]) -> list[float | None]:
    """`compact` for each."""
    return [compact(value) for value in values]


def thin(
    xs: Sequence[float], columns: Sequence[Sequence[float | None]], buckets: int = PLOT_BUCKETS
) -> tuple[list[float], list[list[float | None]]]:
    """Long curves with fewer positions that look the same: the lowest and highest value of each curve in each bucket.

    Args:
        xs: ascending, common to all columns.
    Returns: positions and columns, both ends among them; at most 2 * buckets * len(columns) + 2 positions.
    """
    kept: Sequence[int] = range(len(xs))
    if len(xs) > 2 * buckets + 2:
        chosen = {0, len(xs) - 1}
        for bucket in range(buckets):
            part = range(bucket * len(xs) // buckets, (bucket + 1) * len(xs) // buckets)
            for column in columns:
                known = [(value, at) for at in part if (value := column[at]) is not None]
                chosen.update((min(known)[1], max(known)[1]) if known else (part.start,))
        kept = sorted(chosen)
    return [xs[at] for at in kept], [[column[at] for at in kept] for column in columns]


def tidy(chart: LineChart) -> LineChart:
    """The same chart as small as a plot needs it: no more positions than can be seen, no more digits, gaps for nan."""
    xs, columns = thin(chart.xs, [compact_all(line.values) for line in chart.lines])
    lines = [replace(line, values=values) for line, values in zip(chart.lines, columns, strict=True)]
    return replace(chart, xs=[compact(x) or 0.0 for x in xs], lines=lines)


def percentile_position(percentile: float, count: int) -> float:
    """Position of a percentile on an axis that gets denser towards 100: each further nine is as far as the last.

    Args:
        count: values in the distribution. The largest of them (percentile 100) would be infinitely far; it is placed at
        the percentile half a value below it.
    """
    rest = max(1.0 - percentile / 100.0, 0.5 / max(count, 1))
    return round(-math.log10(rest), 6) + 0.0


# Charts over the time of a run: one axis for all of them, with what happened marked in each.


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """From the run's start to `end_s`. Charts share the cursor: a moment has the same position in all of them."""

    end_s: float
    marks: Sequence[Marks] = ()
    group: str = "time"

    @property
    def x(self) -> Axis:
        """The axis itself, not short of the last position when that is rounded up."""
        return Axis(unit="clock", low=0.0, high=max(self.end_s, compact(self.end_s) or 0.0))

    def chart(
        self,
        chart_id: str,
        title: str,
        xs: Sequence[float],
        lines: Sequence[Line],
        unit: str,
        *,
        limits: Sequence[Limit] = (),
    ) -> LineChart:
        """Curves over this axis, as small as a plot needs them."""
        return tidy(
            LineChart(
                id=chart_id,
                title=title,
                x=self.x,
                y=Axis(unit=unit),
                xs=list(xs),
                lines=list(lines),
                limits=list(limits),
                marks=[one for one in self.marks if one.xs],
                group=self.group,
            )
        )

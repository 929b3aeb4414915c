"""What a plot shows, as plain values; the page's script draws it, and knows nothing of load tests.

A chart is put into the page as JSON. Colours are names ("blue"), which the style sheet gives a value for light and dark
pages. Units are names too; the script formats numbers by them:

    "s" seconds, "per_s" a rate, "count", "share" (0..1 as per cent), "tokens", "percentile" (see `percentile_position`)
"""

import math
from collections.abc import Iterable

import msgspec

_DIGITS = 6
"""Significant digits kept in the page: far below what a plot can show, and half the size."""


class Axis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One axis. `log`: drawn logarithmic from the start."""

    unit: str
    label: str = ""
    log: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One curve over a chart's common positions; None leaves a gap. `band`: down to the next line is filled."""

    name: str
    values: list[float | None]
    color: str
    dash: bool = False
    fill: bool = False
    band: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A horizontal line: a limit that was to be kept."""

    name: str
    value: float


class LineChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="lines"):
    """Curves over common positions.

    Attributes:
        id: unique in the page. title, note: above the plot; the note says in one line what is seen.
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
    bridge: bool = False
    group: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Points with their own positions, joined in their order if `joined`.

    `labels`: what each says when pointed at; `marks`: short text written beside each. One per point, or none.
    """

    name: str
    xs: list[float]
    ys: list[float]
    color: str
    joined: bool = False
    dash: bool = False
    labels: list[str] = []
    marks: list[str] = []


class ScatterChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="scatter"):
    """Points in the plane."""

    id: str
    title: str
    note: str = ""
    x: Axis
    y: Axis
    traces: list[Trace]
    limits: list[Limit] = []


class WaterfallChart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="waterfall"):
    """Requests as bars over time, one row each, by columns.

    Attributes:
        names: "index.turn". outcomes: in words. kinds: see `names.outcome_kind`.
        intended_s .. ended_s: as in the record; first_s, last_s: first and last content; None where it never came.
    """

    id: str
    title: str
    note: str
    group: str
    names: list[str]
    outcomes: list[str]
    kinds: list[str]
    intended_s: list[float]
    released_s: list[float]
    started_s: list[float | None]
    first_s: list[float | None]
    last_s: list[float | None]
    ended_s: list[float | None]
    input_tokens: list[int | None]
    output_tokens: list[int | None]
    cached_tokens: list[int | None]


Chart = LineChart | ScatterChart | WaterfallChart


def compact(value: float | None) -> float | None:
    """A number with six significant digits; None for what is not finite, which JSON cannot say."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def compact_all(values: Iterable[float | None]) -> list[float | None]:
    """`compact` for each."""
    return [compact(value) for value in values]


def percentile_position(percentile: float, count: int) -> float:
    """Where a percentile stands on an axis that gets denser towards 100: each further nine is as far as the last.

    Args:
        count: values in the distribution. The largest of them (percentile 100) would be infinitely far; it stands where
            the percentile half a value below it does.
    """
    rest = max(1.0 - percentile / 100.0, 0.5 / max(count, 1))
    return round(-math.log10(rest), 6) + 0.0

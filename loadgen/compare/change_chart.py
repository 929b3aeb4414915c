"""Bar chart of each metric's relative change with its interval."""

from collections.abc import Sequence

from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict
from loadgen.report.chart import Axis, Bar, BarChart, Key, Limit, compact
from loadgen.report.numbers import change

_KEYS = {
    ComparisonVerdict.BETTER: Key(name="better", color="green"),
    ComparisonVerdict.WORSE: Key(name="worse", color="red"),
    ComparisonVerdict.NOT_SHOWN: Key(name="no difference shown", color="grey"),
    ComparisonVerdict.UNKNOWN: Key(name="no interval: from nothing to the change", color="blue", alpha=0.5),
}
_MARGIN = 0.25
"""Share of the widest change that is left free at both ends for the numbers next to the bars."""


def change_chart(figures: Sequence[ComparedFigure], chart_id: str) -> BarChart | None:
    """A bar from the lower to the upper end of each change's 95 % interval; None if no figure has a ratio."""
    shown = [figure for figure in figures if figure.ratio is not None]
    if not shown:
        return None
    present = [verdict for verdict in _KEYS if any(figure.verdict is verdict for figure in shown)]
    bars = [_bar(lane, figure, present.index(figure.verdict)) for lane, figure in enumerate(shown)]
    low, high = min(0.0, *(bar.start for bar in bars)), max(0.0, *(bar.end for bar in bars))
    margin = _MARGIN * ((high - low) or 1.0)
    return BarChart(
        id=chart_id,
        title="Change against the baseline",
        note="Each bar is the 95 % interval of a change; one that reaches across 0 % shows no difference.",
        x=Axis(unit="share", low=compact(low - margin), high=compact(high + margin)),
        lanes=[*(figure.name for figure in shown), ""],  # the last one has space for the name of the line
        lane_px=26,
        keys=[_KEYS[verdict] for verdict in present],
        bars=bars,
        limits=[Limit(name="no change", value=0.0, vertical=True)],
    )


def _bar(lane: int, figure: ComparedFigure, key: int) -> Bar:
    """One figure's bar, with its change after it."""
    assert figure.ratio is not None, "those without are not shown"
    moved = figure.ratio - 1
    ends = (figure.ci95[0] - 1, figure.ci95[1] - 1) if figure.ci95 else (min(0.0, moved), max(0.0, moved))
    told = f"{figure.name}: {change(moved)}"
    if figure.ci95:
        told += f" ({change(ends[0])} to {change(ends[1])})"
    return Bar(lane, compact(ends[0]) or 0.0, compact(ends[1]) or 0.0, key, told, "", change(moved))

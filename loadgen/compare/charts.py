"""Charts of a comparison: curves of each metric, and each metric's relative change."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict
from loadgen.compare.pairs import ComparedPair
from loadgen.report.chart import Axis, Bar, BarChart, Key, Limit, Line, LineChart, compact, compact_all
from loadgen.report.numbers import change, percentile_name
from loadgen.result import RunResult
from loadgen.run_report.run_charts import CURVE_TITLES, percentile_chart
from loadgen.run_report.sweep_charts import LOAD_GROUP, load_label

# A chart for each metric that both sides have: percentile curves of two runs, or two sweeps over their loads.

_SHOWN = ("50", "99")


def metric_charts(pair: ComparedPair, suffix: str) -> list[LineChart]:
    """Percentile curves of both sides; of several runs in a folder, those of the first.

    Args:
        suffix: ends the charts' ids, which are unique in a page.
    """
    before, after = pair.baseline.results[0], pair.other.results[0]
    charts = []
    for name, title in CURVE_TITLES.items():
        found = [
            (side.name, result.metrics.get(name)) for side, result in ((pair.baseline, before), (pair.other, after))
        ]
        curves = [(label, metric) for label, metric in found if metric and metric.curve]
        if len(curves) == 2:
            chart = percentile_chart(f"{name}{suffix}", title, curves, None)
            charts.append(replace(chart, note=f"{curves[0][1].count:,} and {curves[1][1].count:,} values."))
    return charts


def metric_charts_over_load(pairs: Sequence[ComparedPair], suffix: str) -> list[LineChart]:
    """Median and tail of each latency, and output tokens per second, of two sweeps over the loads that both have.

    Args:
        pairs: of one other sweep, at least one.
    """
    pairs = sorted(pairs, key=lambda pair: pair.value or 0.0)
    charts = [_over_load(pairs, f"tokens{suffix}", "Output tokens per second", "per_s", [("", _tokens)])]
    for name, title in CURVE_TITLES.items():
        readers = [(percentile_name(part), _percentile_of(name, part)) for part in _SHOWN]
        chart = _over_load(pairs, f"{name}{suffix}", title, "s", readers)
        if any(value is not None for line in chart.lines for value in line.values):
            charts.append(chart)
    return charts


_Reader = Callable[[RunResult], float | None]


def _over_load(
    pairs: Sequence[ComparedPair], chart_id: str, title: str, unit: str, readers: Sequence[tuple[str, _Reader]]
) -> LineChart:
    """Some figures of both sweeps: a colour for each sweep, all but the first figure dashed."""
    lines = [
        Line(name=f"{side} {name}".strip(), values=values, color=color, dash=place > 0)
        for side, color, results in (
            ("baseline", "blue", [pair.baseline.results[0] for pair in pairs]),
            ("other", "orange", [pair.other.results[0] for pair in pairs]),
        )
        for place, (name, read) in enumerate(readers)
        for values in [compact_all(read(result) for result in results)]
    ]
    return LineChart(
        id=chart_id,
        title=title,
        x=Axis(unit="number", label=load_label(pairs[0].parameter)),
        y=Axis(unit=unit),
        xs=[pair.value or 0.0 for pair in pairs],
        lines=lines,
        group=LOAD_GROUP,
        bridge=True,
    )


def _tokens(result: RunResult) -> float | None:
    return result.throughput.output_tokens_per_s


def _percentile_of(name: str, percentile: str) -> _Reader:
    """Reads one percentile of one metric."""

    def read(result: RunResult) -> float | None:
        metric = result.metrics.get(name)
        return metric.percentiles.get(percentile) if metric else None

    return read


# Bar chart of each metric's relative change with its interval.

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

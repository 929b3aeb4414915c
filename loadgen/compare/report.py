"""A comparison as a page, as a table in the terminal, and as JSON."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict, RunComparison, SettingDifference
from loadgen.compare.pairs import ComparedPair
from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key, Limit, Line, LineChart, compact, compact_all
from loadgen.report.fragments import Html, details, element, folded_warnings, join
from loadgen.report.numbers import change, percentile_name
from loadgen.report.page import Page
from loadgen.report.table import Table, TableRow, Tone, columns, html_table, table_of, terminal_table
from loadgen.result import RunResult
from loadgen.run_report.run_charts import CURVE_TITLES, percentile_chart
from loadgen.run_report.sweep_charts import LOAD_GROUP, load_label

# Charts of a comparison: curves of each metric, and each metric's relative change.

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
    caption = f"{figure.name}: {change(moved)}"
    if figure.ci95:
        caption += f" ({change(ends[0])} to {change(ends[1])})"
    return Bar(lane, compact(ends[0]) or 0.0, compact(ends[1]) or 0.0, key, caption, "", change(moved))


# The page of a comparison: differences with their certainty, the conditions, and a chart for each metric.
#
# Sweeps are shown over their loads, with a table for each load behind a click.


def comparison_page(pairs: Sequence[ComparedPair]) -> Page:
    """The page.

    Args:
        pairs: at least one, all against the same baseline; those for the same load of a sweep are grouped.
    """
    others = [list(group) for _, group in groupby(pairs, key=lambda pair: pair.group)]
    names = [group[0].other_name for group in others]
    page = Page(f"{' and '.join(names)} against {pairs[0].baseline_name}")
    page.body += [element("h1", page.title), _summary(pairs)]
    for number, (group, name) in enumerate(zip(others, names, strict=True)):
        tail = f": {name}" if len(others) > 1 else ""
        _add_other(page, group, f"-{number}" if number else "", tail)
    return page


def _add_other(page: Page, group: Sequence[ComparedPair], suffix: str, tail: str) -> None:
    """The sections of one other run, or of one other sweep."""
    first = group[0]
    if first.value is None:
        chart = change_chart(first.comparison.figures, f"changes{suffix}")
        tables = [page.draw([chart], single=True) if chart else "", html_table(figures_table(first.comparison))]
        charts = metric_charts(first, suffix)
        page.add(f"differences{suffix}", f"What differs{tail}", _method(first), *tables)
        page.add(f"metrics{suffix}", f"Latency{tail}", page.draw(charts))
    else:
        page.add(f"metrics{suffix}", f"Against the load{tail}", page.draw(metric_charts_over_load(group, suffix)))
        tables = [
            details(f"{pair.comparison.label}: {_count(pair.comparison)}", html_table(figures_table(pair.comparison)))
            for pair in group
        ]
        page.add(f"differences{suffix}", f"What differs{tail}", _method(first), *tables)
    page.add(f"conditions{suffix}", f"Conditions that differ{tail}", _conditions(first.comparison.settings))


def _summary(pairs: Sequence[ComparedPair]) -> Html:
    """How much is better and worse, and every warning, folded."""
    comparisons = [pair.comparison for pair in pairs]
    lines = [f"{_label(pair)}{_count(pair.comparison)}." for pair in pairs] if pairs[0].value is None else []
    warnings = list(dict.fromkeys(warning for one in comparisons for warning in one.warnings))
    chance = chance_words(comparisons)
    return join(
        [
            *(element("p", line, "lead") for line in lines),
            folded_warnings(warnings),
            element("p", chance, "soft") if chance else "",
        ]
    )


def _label(pair: ComparedPair) -> str:
    return f"{pair.other_name}: "


def _count(comparison: RunComparison) -> str:
    """ "2 figures better, 1 worse, 8 without a difference that is shown"."""
    verdicts = [figure.verdict for figure in comparison.figures]
    counts = [
        (verdicts.count(ComparisonVerdict.BETTER), "better"),
        (verdicts.count(ComparisonVerdict.WORSE), "worse"),
        (verdicts.count(ComparisonVerdict.NOT_SHOWN), "without a difference that is shown"),
        (verdicts.count(ComparisonVerdict.UNKNOWN), "without an interval"),
    ]
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "nothing to compare"


def _method(pair: ComparedPair) -> Html:
    return element("p", f"{pair.other_name} against {pair.baseline_name}; {pair.comparison.method}.", "soft")


def _conditions(settings: Sequence[SettingDifference]) -> Html:
    """Flags and places that differ, or that none does."""
    if not settings:
        return element("p", "All settings, the server and the model are the same.", "soft")
    heads = columns("condition", "baseline", "other", text=("condition",), long=("baseline", "other"))
    rows = [[one.name, f"{one.baseline}", f"{one.other}"] for one in settings]
    return html_table(table_of(heads, rows, "Is this the difference that you want to see?"), stack=True)


# A comparison as a table, in the terminal and as JSON.

WIDTH = 80
_WORDS = {ComparisonVerdict.NOT_SHOWN: "none shown"}
"""Verdicts that are too long for a column."""
_TONES: dict[ComparisonVerdict, Tone] = {
    ComparisonVerdict.BETTER: "good",
    ComparisonVerdict.WORSE: "bad",
    ComparisonVerdict.NOT_SHOWN: "",
    ComparisonVerdict.UNKNOWN: "soft",
}


def comparisons_json(comparisons: Sequence[RunComparison]) -> str:
    """The comparisons as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(list(comparisons)), indent=1).decode()


def print_comparisons(comparisons: Sequence[RunComparison], console: Console) -> None:
    """Print a table for each comparison, the differences of the settings, and notes for interpretation.

    Effects: writes to the console.
    """
    for comparison in comparisons:
        _print_one(comparison, console)
    chance = chance_words(comparisons)
    if chance:
        _say(console, chance, "dim")


def chance_words(comparisons: Sequence[RunComparison]) -> str:
    """A sentence on differences that are none; empty where no figure has an interval."""
    tested = sum(figure.ci95 is not None for comparison in comparisons for figure in comparison.figures)
    chance = "Intervals are 95 %: of figures that do not differ, about one in twenty is shown to by chance"
    return f"{chance} ({tested} were tested)." if tested else ""


def figures_table(comparison: RunComparison) -> Table:
    """Every figure: both values, their ratio with its interval, and the conclusion."""
    rows = [TableRow(_cells(figure), _TONES[figure.verdict]) for figure in comparison.figures]
    return Table(columns("", "baseline", "other", "ratio", "interval", "difference", text=("difference",)), rows)


def _print_one(comparison: RunComparison, console: Console) -> None:
    """One table with its notes."""
    head = f"{comparison.label}: " if comparison.label else ""
    _say(console, f"{head}{comparison.other} against {comparison.baseline} ({comparison.method})", "bold")
    console.print(terminal_table(figures_table(comparison), WIDTH))
    if comparison.settings:
        _say(console, "Settings that differ (is this the difference that you want to see?):", "yellow")
        for difference in comparison.settings:
            _say(console, f"  {difference.name}: {difference.baseline} → {difference.other}", "yellow")
    else:
        _say(console, "All settings are the same.", "dim")
    for warning in comparison.warnings:
        _say(console, warning, "yellow")
    console.print()


def _cells(figure: ComparedFigure) -> list[str]:
    """One row: both values, ratio with interval, verdict."""
    interval = numbers.MISSING
    if figure.ci95:
        interval = f"{_ratio(figure.ci95[0])} … {_ratio(figure.ci95[1])}"
    values = [_value(value, figure) for value in (figure.baseline, figure.other)]
    ratio = numbers.MISSING if figure.ratio is None else _ratio(figure.ratio)
    return [figure.name, *values, ratio, interval, _WORDS.get(figure.verdict, figure.verdict)]


def _ratio(value: float) -> str:
    """A ratio with three digits after the point; with more where it would look like 1 and is not."""
    return next((text for digits in range(3, 7) if float(text := f"{value:.{digits}f}") != 1), "1.000")


def _value(value: float | None, figure: ComparedFigure) -> str:
    """A value in its unit; rates without, to save space: the names contain them."""
    if figure.unit == "s":
        return numbers.duration(value)
    return numbers.significant(value) if figure.unit else numbers.share(value)


def _say(console: Console, text: str, style: str) -> None:
    console.print(Text(textwrap.fill(text, WIDTH, subsequent_indent="  "), style=style), soft_wrap=True)

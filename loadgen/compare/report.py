"""A comparison as a page, as a table in the terminal, and as JSON."""

import textwrap
from collections.abc import Sequence
from itertools import groupby

import msgspec
from rich.console import Console
from rich.text import Text

from loadgen.compare.charts import change_chart, metric_charts, metric_charts_over_load
from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict, RunComparison, SettingDifference
from loadgen.compare.pairs import ComparedPair
from loadgen.report import numbers
from loadgen.report.fragments import Html, details, element, folded_warnings, join
from loadgen.report.page import Page
from loadgen.report.table import Table, TableRow, Tone, columns, html_table, table_of, terminal_table

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

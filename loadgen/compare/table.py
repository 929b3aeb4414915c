"""A comparison as a table, in the terminal and as JSON."""

import textwrap
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict, RunComparison
from loadgen.report import numbers
from loadgen.report.table import Table, TableRow, Tone, columns, terminal_table

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

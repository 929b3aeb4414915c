"""`loadgen compare A B ...`: every run against the first, and the table."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict, RunComparison, compare
from loadgen.compare.sides import read_side, sweep_sides
from loadgen.errors import UsageError
from loadgen.report import numbers
from loadgen.report.table import Table, TableRow, Tone, columns, terminal_table
from loadgen.run_folder import read_sweep
from loadgen.run_report.sweep_charts import load_text

WIDTH = 80
_TONES: dict[ComparisonVerdict, Tone] = {
    ComparisonVerdict.BETTER: "good",
    ComparisonVerdict.WORSE: "bad",
    ComparisonVerdict.NOT_SHOWN: "",
    ComparisonVerdict.UNKNOWN: "soft",
}


def compare_folders(paths: Sequence[Path], *, seed: int = 0) -> list[RunComparison]:
    """Compare every path with the first; sweeps point by point, where both have the same load.

    Args:
        paths: at least two: folders of runs, `result.json` files, folders of several runs, or folders of sweeps.
        seed: of the bootstrap.
    Raises: UsageError if there are fewer than two, if one holds no run, or if sweeps have no load in common;
        TraceFormatError if a file is not what it should be.
    """
    if len(paths) < 2:
        raise UsageError("compare needs at least two runs: loadgen compare BASELINE OTHER")
    rng = np.random.default_rng(seed)
    sweeps = [sweep_sides(path) for path in paths]
    if not any(sweeps):
        baseline = read_side(paths[0])
        return [compare(baseline, read_side(path), rng) for path in paths[1:]]
    if not all(sweeps):
        raise UsageError("a sweep can be compared with a sweep only, a run with a run")
    parameter = read_sweep(paths[0]).parameter
    found = [
        compare(sweeps[0][value], sweep[value], rng, label=load_text(parameter, value))
        for sweep in sweeps[1:]
        for value in sweeps[0]
        if value in sweep
    ]
    if not found:
        raise UsageError("the sweeps have no load in common; give both the same --sweep-values")
    return found


def comparisons_json(comparisons: Sequence[RunComparison]) -> str:
    """The comparisons as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(list(comparisons)), indent=1).decode()


def print_comparisons(comparisons: Sequence[RunComparison], console: Console) -> None:
    """Print a table for each comparison, what differs in the settings, and what to keep in mind.

    Effects: writes to the console.
    """
    for comparison in comparisons:
        _print_one(comparison, console)
    tested = sum(figure.ci95 is not None for comparison in comparisons for figure in comparison.figures)
    if tested:
        chance = "Intervals are 95 %: of figures that do not differ, about one in twenty is shown to by chance"
        _say(console, f"{chance} ({tested} were tested).", "dim")


def _print_one(comparison: RunComparison, console: Console) -> None:
    """One table with its notes."""
    head = f"{comparison.label}: " if comparison.label else ""
    _say(console, f"{head}{comparison.other} against {comparison.baseline} ({comparison.method})", "bold")
    rows = [TableRow(_cells(figure), _TONES[figure.verdict]) for figure in comparison.figures]
    heads = columns("", "baseline", "other", "ratio", "95 % interval", "verdict", text=("verdict",))
    console.print(terminal_table(Table(heads, rows), WIDTH))
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
    return [figure.name, *values, ratio, interval, figure.verdict]


def _ratio(value: float) -> str:
    """A ratio with three digits after the point; with more where it would look like 1 and is not."""
    return next((text for digits in range(3, 7) if float(text := f"{value:.{digits}f}") != 1), "1.000")


def _value(value: float | None, figure: ComparedFigure) -> str:
    """A value in its unit; rates without, for want of room: their names tell it."""
    if figure.unit == "s":
        return numbers.duration(value)
    return numbers.significant(value) if figure.unit else numbers.share(value)


def _say(console: Console, text: str, style: str) -> None:
    """A sentence, wrapped."""
    console.print(Text(textwrap.fill(text, WIDTH, subsequent_indent="  "), style=style), soft_wrap=True)

"""Tables of a comparison, for page and terminal."""

import math

from loadgen.report import numbers
from loadgen.report.table import Cell, Table, TableRow, Tone, columns, table_of
from serving.virtual.comparison.comparison import SimulatedFigure, SimulationComparison

_NO_CHANGE = 0.0005
"""Relative change below which a figure counts as equal."""


def figure_table(compared: SimulationComparison) -> Table:
    """Every figure of both runs and its change, coloured if one direction is better."""
    rows = [
        TableRow([one.name, value(one, one.baseline), value(one, one.other), Cell(change(one), _tone(one))])
        for one in compared.figures
    ]
    return Table(columns("", "baseline", "other", "change"), rows)


def paired_table(compared: SimulationComparison) -> Table:
    """The same requests in both runs: how many got faster or slower, and by how much."""
    heads = columns("same requests", "in both", "faster", "slower", "median change", "least", "most")
    rows = [
        [
            one.name, numbers.count(one.pairs), numbers.count(one.faster), numbers.count(one.slower),
            *(_signed(seconds) for seconds in (one.median_s, one.least_s, one.most_s)),
        ]
        for one in compared.paired
    ]  # fmt: skip
    return table_of(heads, rows, "Faster, slower: by more than a thousandth. Change: other run less baseline.")


def settings_table(compared: SimulationComparison) -> Table:
    """Settings that differ."""
    missing = numbers.MISSING
    rows = [[name, left or missing, right or missing] for name, left, right in compared.settings]
    return table_of(columns("setting", "baseline", "other", long=("baseline", "other")), rows)


def decision_table(compared: SimulationComparison) -> Table:
    """How often each kind of decision was made."""
    counts = compared.baseline.decision_counts, compared.other.decision_counts
    rows = [[kind, *(numbers.count(one.get(kind, 0)) for one in counts)] for kind in sorted({*counts[0], *counts[1]})]
    return table_of(columns("decision", "baseline", "other"), rows)


def value(figure: SimulatedFigure, number: float | None) -> str:
    """A figure's value in its unit."""
    if number is None:
        return numbers.MISSING
    if figure.unit == "s":
        return numbers.duration(number)
    if figure.unit == "share":
        return numbers.share(number)
    return numbers.count(int(number)) if figure.unit == "count" else numbers.significant(number)


def change(figure: SimulatedFigure) -> str:
    """Change in per cent; of a share in percentage points."""
    found = figure.change
    if found is None or figure.unit != "share":
        return numbers.change(found)
    return f"{numbers.change(found).removesuffix(' %')} points"


def _tone(figure: SimulatedFigure) -> Tone:
    found = figure.change
    if found is None or math.isnan(found) or abs(found) < _NO_CHANGE or figure.better == "neither":
        return ""
    return "good" if (found > 0) == (figure.better == "more") else "bad"


def _signed(seconds: float) -> str:
    """A duration with its sign; 0 has none."""
    sign = "+" if seconds > 0 else "−" if seconds < 0 else ""
    return sign + numbers.duration(abs(seconds))

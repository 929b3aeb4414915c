"""The page of a comparison: differences with their certainty, the conditions, and a chart for each metric.

Sweeps are shown over their loads, with a table for each load behind a click.
"""

from collections.abc import Sequence
from itertools import groupby

from loadgen.compare.change_chart import change_chart
from loadgen.compare.comparison import ComparisonVerdict, RunComparison, SettingDifference
from loadgen.compare.metric_charts import metric_charts, metric_charts_over_load
from loadgen.compare.pairs import ComparedPair
from loadgen.compare.table import chance_words, figures_table
from loadgen.report.fragments import Html, details, element, folded_warnings, join
from loadgen.report.page import Page
from loadgen.report.table import columns, html_table, table_of


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

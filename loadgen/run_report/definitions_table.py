"""The table of metric definitions in the page, from the one place where they are defined."""

from collections.abc import Sequence

from loadgen.metrics.definitions import DEFINITIONS
from loadgen.report.fragments import Html, element
from loadgen.report.table import columns, html_table, table_of
from loadgen.run_report.names import metric_title


def definitions_table(names: Sequence[str]) -> Html:
    """Definitions of the metrics that a page shows, in their usual order."""
    rows: list[list[object]] = [
        [metric_title(metric.name), metric.what, element("code", metric.formula)]
        for metric in DEFINITIONS
        if metric.name in names
    ]
    heads = columns("metric", "meaning", "formula", text=("metric",), long=("meaning", "formula"))
    return html_table(table_of(heads, rows), stack=True) if rows else Html("")

"""The table of metric definitions in the page, from the one place where they are defined."""

from collections.abc import Sequence

from loadgen.metrics.definitions import DEFINITIONS
from loadgen.report.fragments import Html, element
from loadgen.report.table import html_table, long_columns, table_of, text_columns
from loadgen.run_report.names import metric_title


def definitions_table(names: Sequence[str]) -> Html:
    """What the metrics mean that a page shows, in the order of the definitions."""
    rows: list[list[object]] = [
        [metric_title(metric.name), metric.what, element("code", metric.formula)]
        for metric in DEFINITIONS
        if metric.name in names
    ]
    columns = [*text_columns("metric"), *long_columns("meaning", "formula")]
    return html_table(table_of(columns, rows), stack=True) if rows else Html("")

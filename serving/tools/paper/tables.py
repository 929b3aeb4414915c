"""Tables of a reproduction, for page, terminal and Markdown."""

from hardware.cost.row_kind import RowKind
from loadgen.report import numbers
from loadgen.report.fragments import Html, html
from loadgen.report.table import Cell, Table, TableRow, columns
from serving.tools.paper import texts
from serving.tools.paper.reasons import reasons_of
from serving.tools.paper.reproduction import Reproduced, Reproduction
from serving.tools.paper.rows import CLOSE


def rows_table(part: Reproduced) -> Table:
    """Every figure of an experiment: published, ours, and how far off."""
    heads = columns(
        "", "unit", "published", "ours", "error", "how", "source", text=("unit", "how", "source"), long=("",)
    )
    rows = []
    for row in part.findings.rows:
        far = row.error is not None and not row.within(CLOSE)
        cells = [
            row.label, row.unit, texts.published_text(row), texts.ours_text(row),
            Cell(texts.error_text(row), "warn" if far else ""), row.how_text, row.source,
        ]  # fmt: skip
        rows.append(TableRow(cells, "soft" if row.ours is None else ""))
    return Table(heads, rows)


def overview_table(done: Reproduction) -> Table:
    """Every experiment, with how close it is; for a page, where each leads to its section."""
    heads = columns("experiment", "", "rows", "within 5 %", "predicted", "mean error", "largest error", long=("",))
    return Table(heads, [_overview_row(part) for part in done.parts])


def headline_table(done: Reproduction) -> Table:
    """The most meaningful rows, predicted ones first; see `texts.headlines`."""
    heads = columns("experiment", "row", "published", "ours", "error", "how", text=("experiment", "row", "how"))
    rows = []
    found = [(part, row) for part in done.parts for row in texts.headlines(part)]
    for part, row in sorted(found, key=lambda one: one[1].kind is not RowKind.PREDICTED):
        mark = " ¹" if part.reason(row) else ""
        cells = (
            part.experiment.name, f"{row.label}, {row.unit}", texts.published_text(row), texts.ours_text(row),
            f"{texts.error_text(row)}{mark}", row.how_text,
        )  # fmt: skip
        rows.append(TableRow(cells))
    return Table(heads, rows)


def _overview_row(part: Reproduced) -> TableRow:
    compared = [row for row in part.findings.rows if row.error is not None]
    errors = [abs(row.error or 0.0) for row in compared]
    predicted = [row for row in compared if row.kind is RowKind.PREDICTED]
    unexplained = any(reason.unexplained for reason in reasons_of(part))
    worst = max(errors, default=0.0)
    name = part.experiment.name
    return TableRow([
        Html(f'<a href="#{html(name)}">{html(name)}</a>'), part.experiment.title, numbers.count(len(errors)),
        numbers.count(sum(row.within(CLOSE) for row in compared)),
        f"{sum(row.within(CLOSE) for row in predicted)} of {len(predicted)}" if predicted else numbers.MISSING,
        numbers.share(sum(errors) / len(errors)) if errors else numbers.MISSING,
        Cell(numbers.share(worst), "bad" if unexplained else "warn" if worst > CLOSE else ""),
    ])  # fmt: skip

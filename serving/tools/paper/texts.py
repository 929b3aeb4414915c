"""Text of rows, identical on the terminal, in Markdown and on the page."""

from hardware.cost.row_kind import RowKind
from loadgen.report import numbers
from serving.tools.paper.reproduction import Reproduced
from serving.tools.paper.rows import Row

_SIGNS = {"=": "", "<": "< ", ">": "> ", "~": "≈ "}


def published_text(row: Row) -> str:
    """The published figure as it was printed, with its bound."""
    return _SIGNS[row.relation] + figure(row.published)


def ours_text(row: Row) -> str:
    """Our figure; a dash for what is only quoted."""
    if row.ours is None:
        return numbers.MISSING
    return f"{row.ours:,}" if isinstance(row.ours, int) else numbers.significant(row.ours)


def error_text(row: Row) -> str:
    """Signed per cent."""
    error = row.error
    if error is None:
        return ""
    if row.relation in "<>" and error == 0:
        return "holds"
    return f"{numbers.change(error)}, broken" if row.relation in "<>" else numbers.change(error)


def figure(value: float) -> str:
    """Shortest text of a figure: 2560 -> "2,560", 1.058 -> "1.058"."""
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def headlines(part: Reproduced) -> list[Row]:
    """Rows for the short table: those predicted or marked; if there are none, the one that is furthest off."""
    compared = [row for row in part.findings.rows if row.error is not None]
    marked = [row for row in compared if row.headline or row.kind is RowKind.PREDICTED]
    return marked or sorted(compared, key=lambda row: -abs(row.error or 0.0))[:1]

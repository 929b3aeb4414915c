"""Markdown that all references share."""

from collections.abc import Iterable, Sequence


def made_by_a_script(title: str, text: str) -> str:
    """The head of a page: title, the note that it is not to be edited, and what the page is about."""
    note = "<!-- Made by `python -m docs.reference_pages`; a test compares. -->"
    return f"# {title}\n\n{note}\n\n{text}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as a table; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    kept = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in kept)


def literal(text: object) -> str:
    """A text set as code; an empty one stays empty."""
    return f"`{text}`" if str(text) else ""

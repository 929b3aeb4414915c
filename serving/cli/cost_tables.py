"""Plain tables of `cloudmatrix cost`."""

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """A table without lines; columns whose name starts with ">" are numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        number = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if number else "left", no_wrap=number)
    return table

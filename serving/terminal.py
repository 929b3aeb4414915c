"""The console that commands print their tables on."""

from rich.console import Console

PLAIN_WIDTH = 120
"""Columns, at least, where there is no terminal."""


def table_console() -> Console:
    """A console as wide as the terminal; elsewhere a wide one: a pipe or a file must not lose columns.

    Effects: none.
    """
    console = Console()
    return console if console.is_terminal else Console(width=max(PLAIN_WIDTH, console.width))

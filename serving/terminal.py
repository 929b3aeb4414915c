"""The console that commands print their tables on."""

import os
import sys

from rich.console import Console

PLAIN_WIDTH = 120
"""Columns where there is no terminal."""


def table_console() -> Console:
    """A console as wide as the terminal, or of 120 columns where there is none: a pipe must not cut columns off.

    Effects: none.
    """
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=PLAIN_WIDTH)

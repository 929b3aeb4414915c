"""What commands have in common towards a terminal: the console for tables, and how they are ended."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

PLAIN_WIDTH = 120
"""Columns, at least, where there is no terminal."""


def table_console() -> Console:
    """A console as wide as the terminal; elsewhere a wide one: a pipe or a file must not lose columns.

    Effects: none.
    """
    console = Console()
    return console if console.is_terminal else Console(width=max(PLAIN_WIDTH, console.width))


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM is as Ctrl-C, so that what was begun is cleaned up. Only in the main thread.

    Effects: the handler before it is back afterwards.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def silence(stream: TextIO) -> None:
    """What is written to a stream goes nowhere from now on: nobody reads it any more.

    Effects: its descriptor; what Python still holds for it would otherwise fail once more when the process ends.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

"""Consoles of both programs: one rule for colours and width."""

from rich.console import Console

PLAIN_WIDTH = 120
"""Least number of columns without a terminal."""


def terminal_console(*, stderr: bool = False, highlight: bool = True, soft_wrap: bool = False) -> Console:
    """A console for tables and messages.

    It has colours on a terminal only: none in pipes and files, with NO_COLOR, or with TERM=dumb; FORCE_COLOR has them
    anywhere. It is as wide as the terminal, and without one wide enough that pipes and files lose no columns.

    Args:
        stderr: write to standard error instead of standard output.
        highlight: colour numbers and strings.
        soft_wrap: let the terminal wrap long lines.
    """
    console = Console(stderr=stderr, highlight=highlight, soft_wrap=soft_wrap)
    if not console.is_terminal:
        console.width = max(PLAIN_WIDTH, console.width)
    return console

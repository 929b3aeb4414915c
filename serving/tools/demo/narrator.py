"""The demo's words in the terminal; plain lines where the output is none."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from loadgen.report.table import Table, terminal_table
from serving.terminal import without_controls

WIDTH = 100
"""Columns of text, at most: longer lines are hard to read."""
_STATES = {"done": ("✓", "green"), "skipped": ("–", "yellow"), "failed": ("✗", "bold red")}


class Narrator:
    """Writes to one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(WIDTH, console.width)

    def title(self, text: str, below: str) -> None:
        """The beginning."""
        self._console.print(Text(text, style="bold"))
        self.say(below)

    def heading(self, number: int, total: int, title: str) -> None:
        """Print the heading of a step."""
        self._console.print()
        rule = "─" * max(2, self._width - len(title) - len(f"{number}/{total}") - 5)
        self._console.print(
            Text.assemble(("── ", "dim"), (f"{number}/{total} {title}", "bold cyan"), (f" {rule}", "dim"))
        )

    def say(self, text: str) -> None:
        """A paragraph."""
        self._console.print(Text(text), width=self._width)

    def commands(self, lines: Sequence[str]) -> None:
        """Lines that the reader would type."""
        for line in lines:
            self._console.print(Text.assemble(("  $ ", "dim"), (line, "bold")), soft_wrap=True)

    def question(self, text: str) -> None:
        """A question to the model."""
        self._console.print(Text(f"> {text}", style="cyan"), width=self._width)

    def stream(self, piece: str) -> None:
        """A piece of a response, as it arrives."""
        self._console.print(Text(without_controls(piece)), end="", soft_wrap=True)

    def event(self, text: str) -> None:
        """An event, on a line of its own."""
        self._console.print(Text(text, style="bold yellow"), width=self._width)

    def line(self, text: str = "") -> None:
        """A literal line; without text the end of a streamed one."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def address(self, name: str, url: str) -> None:
        """Print an address on one unbroken line, so that terminals make it a link."""
        self._console.print(Text.assemble((f"{name}: ", "bold"), url), soft_wrap=True)

    def table(self, table: Table) -> None:
        """A table."""
        self._console.print(Padding(terminal_table(table, self._width), (1, 0, 1, 2)))

    def outcome(self, state: str, text: str) -> None:
        """Print how a step ended."""
        mark, style = _STATES[state]
        self._console.print(Text(f"{mark} {text}", style=style), width=self._width)

    def flush(self) -> None:
        """Flush printed text before another process writes."""
        self._console.file.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a wait: a spinner on a terminal, otherwise a line."""
        if not self._console.is_terminal:
            self.say(f"{text} ...")
            yield
            return
        with self._console.status(Text(f"{text} ..."), spinner="dots"):
            yield

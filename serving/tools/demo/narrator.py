"""The demo's words in the terminal; plain lines where the output is none."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal, Self

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from loadgen.report.table import Table, terminal_table
from serving.terminal import ending_signals, leave_closed_terminal, without_controls

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
        """Print a line as it is; without text, end the line that `stream` has printed."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def address(self, name: str, url: str) -> None:
        """Print an address on one unbroken line, so that terminals make it a link."""
        self._console.print(Text.assemble((f"{name}: ", "bold"), url), soft_wrap=True)

    def table(self, table: Table) -> None:
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


# Keys and signals that control the demo.
#
# between two steps   Enter or space continues, `s` skips the next one, `q` quits; without a terminal there is no wait
# within a step       Ctrl-C skips it; a second one within `AGAIN_S`, SIGTERM or SIGHUP end the demo

Choice = Literal["go", "skip", "leave"]
AGAIN_S = 1.5
_CHOICES: dict[bytes, Choice] = {b"\n": "go", b"\r": "go", b" ": "go", b"s": "skip", b"q": "leave", b"\x04": "leave"}
_FOREVER_S = 3600.0


class Interrupts:
    """Context in which each termination signal raises KeyboardInterrupt.

    Args:
        clock: monotonic [s].
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.leave = False
        """Whether the demo is to end, not only the step."""
        self._clock = clock
        self._last_s = -AGAIN_S
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {kind: signal.signal(kind, self._on_signal) for kind in ending_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _on_signal(self, kind: int, frame: FrameType | None) -> None:
        now = self._clock()
        self.leave = self.leave or kind != signal.SIGINT or now - self._last_s < AGAIN_S
        self._last_s = now
        leave_closed_terminal()
        raise KeyboardInterrupt


class Keys:
    """The keyboard, if there is one.

    Args:
        awaited: whether to prompt between steps; never without a terminal.
    """

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited and sys.stdin.isatty() and sys.stdout.isatty()

    def choose(self) -> Choice:
        """Wait for a key, if any is awaited.

        Effects: the terminal is in single-key mode during the call and is restored afterwards.
        """
        if not self.awaited:
            return "go"
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        try:
            tty.setcbreak(fd)
            while True:
                select.select([fd], [], [], _FOREVER_S)
                key = os.read(fd, 1)
                if not key:  # the terminal has closed
                    return "leave"
                if key in _CHOICES:
                    return _CHOICES[key]
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

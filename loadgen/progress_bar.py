"""Progress of a long command on stderr: a bar on a terminal, otherwise a plain line every ten seconds.

Theory of operation. On a terminal, rich redraws the bar in its own thread. Otherwise a thread wakes up every ten
seconds, so that a line appears even during a long step.
"""

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from loadgen.report import numbers

PLAIN_EVERY_S = 10.0


class ProgressConsole(Console):
    """Console on stderr that tolerates a closed pipe: Ctrl-C on `COMMAND 2>&1 | tee` ends tee before the command.

    Args:
        quiet: print no output.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Print no further output. Effects: stderr leads nowhere, or Python would fail once more when it ends."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class ProgressBar:
    """The bar, or the lines, of one command; a context manager.

    Args:
        what: is under way. total: of what is counted as done; None = not known.
        counted: show the counts, not only their share.
        quiet: show no bar.
        console: instead of one on stderr.
        every_s: between two plain lines [s].
    """

    def __init__(
        self,
        what: str = "",
        total: float | None = None,
        *,
        counted: bool = False,
        quiet: bool = False,
        console: Console | None = None,
        every_s: float = PLAIN_EVERY_S,
    ) -> None:
        self._console = console or ProgressConsole(quiet=quiet)
        self._what, self._total, self._done, self._note = what, total, 0.0, ""
        self._counted = counted
        plain = not self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=quiet or plain,
        )
        self._task = self._bar.add_task(what, total=total, note="")
        self._every_s = every_s
        self._over = threading.Event()
        self._lines = threading.Thread(target=self._tell, name="progress", daemon=True) if plain and not quiet else None
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        self._begun = time.monotonic()
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._bar.stop()
        if self._lines is not None:
            self._lines.join()

    def begin(self, what: str, total: float | None = None) -> None:
        """Replace the stage by a new one with no progress."""
        self._bar.reset(self._task)
        self.update(0.0, what=what, total=total)

    def update(self, done: float, note: str = "", *, what: str | None = None, total: float | None = None) -> None:
        """Set the progress.

        Args:
            note: further words. what, total: None = as before.
        """
        self._done, self._note = done, note
        self._what = self._what if what is None else what
        self._total = self._total if total is None else total
        self._bar.update(self._task, description=self._what, completed=done, total=self._total, note=self._words())

    def advance(self, more: float = 1.0) -> None:
        """Count more as done."""
        self.update(self._done + more, self._note)

    def line(self, elapsed_s: float) -> str:
        """The plain line: "evaluating: 25 %, 10 of 40, 20.0 s so far"."""
        share = numbers.share(min(1.0, self._done / self._total)) if self._total else ""
        parts = [part for part in (share, self._words(), f"{numbers.duration(elapsed_s)} so far") if part]
        return f"{self._what}: {', '.join(parts)}" if self._what else ", ".join(parts)

    def _words(self) -> str:
        counts = f"{self._done:,.0f} of {self._total:,.0f}" if self._counted and self._total else ""
        return ", ".join(part for part in (counts, self._note) if part)

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            self._console.print(Text(self.line(time.monotonic() - self._begun)), soft_wrap=True)

"""How far an evaluation is, on stderr where that is a terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class EvaluationProgress:
    """One bar per stage: reading weights, then each text and task."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._stage = self._bar.add_task("", visible=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        """A new stage of so many pieces replaces the last one."""
        self._bar.remove_task(self._stage)
        self._stage = self._bar.add_task(what, total=total)

    def advance(self, pieces: int = 1) -> None:
        """Count more pieces of this stage as done."""
        self._bar.advance(self._stage, pieces)

    def weights(self, what: str, done: int, total: int) -> None:
        """A tensor was read."""
        if done == 1:
            self.begin(f"loading {what}", total)
        self.advance()

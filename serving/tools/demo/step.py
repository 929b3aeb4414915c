"""The interface of a step, and what one has found, ready for terminal and page."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadgen.report.chart import Chart
from loadgen.report.table import Table
from serving.errors import ServingError
from serving.tools.demo.stage import Stage


class StepError(ServingError):
    """A step could not show what it is there for; the message is the reason."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """Findings of one step.

    Args:
        summary: one sentence.
        figure: name and value of the main figure, such as ("pause", "2.1 s"); `more`: small print below it.
        problem: what of the README's promise was not kept; empty = all of it was.
        quotes: texts of the model.
        files: what was written into the demo's folder, relative to it, by what it is.
    """

    summary: str
    figure: tuple[str, str]
    more: tuple[str, ...] = ()
    problem: str = ""
    quotes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to show.

    Args:
        name: on the command line. title: in terminal and page.
        text: what is going to happen and why that is worth a look, a few sentences.
        commands: what does the same on a system of the reader's own.
        run: does it. Raises: StepError, UnavailableError and the like; KeyboardInterrupt when it is skipped, after
        stopping all that it started. needs_system: whether there must be a system.
    """

    name: str
    title: str
    text: str
    commands: tuple[str, ...]
    run: Callable[[Stage], StepReport]
    needs_system: bool = True


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step's end.

    Args:
        reason: why it failed; empty otherwise.
        report: what it found; None if it was skipped, or failed before it had found anything.
    """

    step: Step
    state: Literal["done", "skipped", "failed"]
    took_s: float
    reason: str = ""
    report: StepReport | None = None


@dataclass(slots=True)
class DemoRun:
    """The whole demo: the completed steps in order.

    Args:
        model: the served model; empty where no system was started.
        left: what the demo's system has left on the machine; empty = clean.
        ended_early: the reader left before the last step; `interrupted`: by Ctrl-C or another signal, not by a key.
    """

    outcomes: list[StepOutcome]
    model: str = ""
    took_s: float = 0.0
    left: tuple[str, ...] = ()
    ended_early: bool = False
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether anything went wrong. What was skipped did not."""
        return bool(self.left) or any(outcome.state == "failed" for outcome in self.outcomes)

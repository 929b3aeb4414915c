"""The interface of a step, and its findings, ready for terminal and page."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadgen.report.chart import Chart
from loadgen.report.table import Table
from serving.errors import ServingError
from serving.tools.demo.stage import Stage


class StepError(ServingError):
    """A step could not show its subject; the message is the reason."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """Findings of one step.

    Args:
        summary: one sentence.
        figure: name and value of the main figure, such as ("pause", "2.1 s"); `more`: small print below it.
        problem: which claim of the README was not met; empty = all were.
        quotes: texts of the model.
        files: files written into the demo's folder, relative to it, by content.
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
    """One demonstration.

    Args:
        name: on the command line. title: in terminal and page.
        text: what the step shows and why, a few sentences.
        commands: that do the same on the reader's own system.
        run: executes it. Raises: StepError, UnavailableError and the like; KeyboardInterrupt when it is skipped, after
        stopping all that it started. needs_system: whether it needs a running system.
    """

    name: str
    title: str
    text: str
    commands: tuple[str, ...]
    run: Callable[[Stage], StepReport]
    needs_system: bool = True


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of a step.

    Args:
        reason: why it failed; empty otherwise.
        report: its findings; None if it was skipped, or failed before it had any.
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
        left: leftovers of the demo's system on the machine; empty = clean.
        ended_early: the reader quit before the last step; `interrupted`: by Ctrl-C or another signal, not by a key.
    """

    outcomes: list[StepOutcome]
    model: str = ""
    took_s: float = 0.0
    left: tuple[str, ...] = ()
    ended_early: bool = False
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether a step failed. Skipped steps did not."""
        return bool(self.left) or any(outcome.state == "failed" for outcome in self.outcomes)

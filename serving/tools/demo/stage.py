"""Tools of a step: the demo's own system, the terminal, the folder of the report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadgen.report.chart import Chart
from loadgen.report.table import Table
from serving.client.http_client import ask_gateway
from serving.client.pools_client import PoolsClient
from serving.cluster.session import running_starts
from serving.errors import ServingError, UnavailableError
from serving.shipped import SHIPPED
from serving.tools.chaos.own_system import OwnSystem, left_after
from serving.tools.chaos.targets import find_session
from serving.tools.demo.narrator import Narrator

CONFIG = SHIPPED / "demo.toml"


@dataclass(frozen=True, slots=True)
class DemoSystem:
    """The system that the demo has started. `session`: its name among the starts on this machine."""

    url: str
    model: str
    session: str
    pools: PoolsClient

    def status(self) -> dict[str, Any]:
        """`GET /cluster`. Raises: UnavailableError."""
        return ask_gateway(self.url, "/cluster", None)


@dataclass(frozen=True, slots=True)
class Stage:
    """Resources available to a step.

    Args:
        begun_s: start of the demo on the monotonic clock [s].
        folder: of the report; a step's own files go into a folder of its name there.
        running: the demo's system; None where no step needs one.
    """

    narrator: Narrator
    folder: Path
    begun_s: float
    running: DemoSystem | None = None

    @property
    def system(self) -> DemoSystem:
        """The demo's system, for steps that need one."""
        assert self.running is not None, "such a step declares that it needs a system"
        return self.running


@contextmanager
def own_system(narrator: Narrator, left: list[str]) -> Iterator[DemoSystem]:
    """Start a system, and stop it on exit in every case.

    Args:
        left: receives the system's leftovers on the machine.
    Raises: UnavailableError if it does not start.
    """
    begun, session = time.monotonic(), ""
    system = OwnSystem(CONFIG)
    try:
        with narrator.waiting("starting a system: Ray, virtual NPUs, three pools and a gateway"):
            system.__enter__()
            found = found_system(system.url)
            session = found.session
        narrator.say(
            f"ready after {time.monotonic() - begun:.1f} s at {system.url}; nothing else on this machine is touched"
        )
        yield found
    finally:
        with narrator.waiting("ending the system"):
            system.stop()
            left += [*system.left, *(left_after(session) if session else [])]


def found_system(url: str) -> DemoSystem:
    """The system at an address, with the client of its pools."""
    status = ask_gateway(url, "/cluster", None)
    session = find_session(status)
    start = next((one for one in running_starts() if one.name == session), None)
    if start is None:
        raise UnavailableError(f"the system at {url} exited right after its start")
    return DemoSystem(url, status["model"], session, PoolsClient(start.dashboard_url, start.token))


# The interface of a step, and its findings, ready for terminal and page.


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

"""A run of the real fleet, and its results; jobs for it."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loadgen.driver.fleet import Fleet, FleetLimits
from loadgen.driver.messages import DriveSettings, Mode
from loadgen.driver.progress import FleetReport, Progress
from loadgen.driver.worker_process import BOOT
from loadgen.endpoint import Endpoint
from loadgen.plan import Behaviour, Conversation, LoadJob, Turn
from loadgen.record import RequestRecord
from loadgen.selftest.ceiling import BlastServer


@dataclass
class Run:
    """Results of a run; `at_progress` may interfere."""

    records: list[RequestRecord] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    cut: threading.Event = field(default_factory=threading.Event)
    at_progress: Callable[[Progress], None] = lambda _: None
    report: FleetReport | None = None

    def go(self, settings: DriveSettings, jobs: Iterable[LoadJob], boot: str = BOOT, **limits: float) -> FleetReport:
        """Run to the end."""
        self.report = Fleet(settings, FleetLimits(**limits), boot).run(
            iter(jobs), on_records=self.records.extend, on_progress=self._note, stop=self.stop, cut=self.cut
        )
        return self.report

    def _note(self, progress: Progress) -> None:
        self.progress.append(progress)
        self.at_progress(progress)

    def peak(self) -> int:
        """Most requests open at once, counted from the records."""
        marks = [(r.started_s, 1) for r in self.records if r.started_s is not None]
        marks += [(r.ended_s or 0.0, -1) for r in self.records if r.started_s is not None]
        return max(itertools.accumulate(step for _, step in sorted(marks)), default=0)


def endpoint(server: BlastServer, **fields: Any) -> Endpoint:
    """The completions endpoint of a blast server."""
    return Endpoint(base_url=server.url, path="/v1/completions", model=server.model, **fields)


def drive_settings(server: BlastServer, mode: Mode = Mode.OPEN, **fields: Any) -> DriveSettings:
    """Settings for short runs."""
    return DriveSettings(endpoint=endpoint(server), mode=mode, **{"drain_s": 20.0, "request_timeout_s": 30.0} | fields)


def scheduled(times_s: Iterable[float], output_tokens: int = 5) -> Iterator[LoadJob]:
    """One-turn jobs at these times."""
    for index, due_s in enumerate(times_s):
        yield LoadJob(index=index, due_s=due_s, conversation=one_turn(output_tokens))


def unscheduled(count: int | None = None, output_tokens: int = 5) -> Iterator[LoadJob]:
    """One-turn jobs for a closed loop; endless without a count."""
    for index in itertools.count() if count is None else range(count):
        yield LoadJob(index=index, conversation=one_turn(output_tokens))


def dialogue(
    index: int, turns: int, *, due_s: float | None = 0.0, think_s: float = 0.0, history: bool = True
) -> LoadJob:
    """A conversation of several turns."""
    asked = [Turn(prompt=f"question {n}", output_tokens=3, think_s=think_s if n else 0.0) for n in range(turns)]
    behaviours = [Behaviour() for _ in asked]
    conversation = Conversation(turns=asked, history=history)
    return LoadJob(index=index, due_s=due_s, conversation=conversation, behaviours=behaviours)


def one_turn(output_tokens: int) -> Conversation:
    """One short question."""
    return Conversation(turns=[Turn(prompt="tell me", output_tokens=output_tokens)])


NOWHERE = Endpoint(base_url="http://127.0.0.1:1", path="/v1/completions", model="m")
"""An address without a server."""


def settings(**fields: Any) -> DriveSettings:
    """Settings of a run against an endpoint without a server."""
    return DriveSettings(endpoint=NOWHERE, **fields)

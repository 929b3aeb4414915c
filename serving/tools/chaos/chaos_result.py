"""Result of a run, as values; all reports are computed from these."""

from dataclasses import dataclass, field
from typing import Literal

from hardware.faults import FaultKind
from serving.tools.chaos.asks import StreamedAnswer

Fate = Literal["under way", "replaced", "survived", "not replaced", "passed", "nobody to hit", "gone before"]
"""`replaced` by another process; `survived` = thawed in time and continued; `passed` = a fault that removes no process.
"""


@dataclass(slots=True)
class Event:
    """One fault that was injected, or could not be.

    Args:
        at_s: since the load started [s]; `planned_s` is the scheduled time.
        at_clock_s: the same on the clock of responses [s].
        target: the affected unit; empty if there was none. host: its host; empty = this machine.
        replaced_s: from the fault until its pool was complete again without the process [s].
        bits: of stored blocks that a memory server was to flip.
    """

    number: int
    kind: FaultKind
    at_s: float
    at_clock_s: float
    planned_s: float
    pool: str = ""
    target: str = ""
    pid: int = 0
    lasts_s: float = 0.0
    fate: Fate = "under way"
    replaced_s: float | None = None
    bits: int = 0
    host: str = ""

    @property
    def where(self) -> str:
        """Affected process, with its host if that is another one; empty if there is none."""
        return f"{self.host} {self.pid}".strip() if self.target else ""

    @property
    def hit(self) -> bool:
        """Whether any unit was affected."""
        return self.fate not in ("nobody to hit", "gone before")

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.fate != "under way"


@dataclass(frozen=True, slots=True)
class Sample:
    """The system at one moment, as seen by the client: `at_s` since the load started."""

    at_s: float
    in_flight: int
    tokens: int
    """Received so far, of all requests."""
    replicas: dict[str, int]
    """Listed replicas by pool; empty when the gateway did not answer."""


@dataclass(slots=True)
class Down:
    """An interval in which the system was not ready, on the clock of responses [s]: from the last ready moment."""

    begun_s: float
    ended_s: float


@dataclass(slots=True)
class Leaks:
    """Remains of finished work. Each entry has a place and an amount; empty = clean."""

    counts: dict[str, int] = field(default_factory=dict)
    """Counts of `GET /cluster` that are not zero at rest, missing replicas among them."""
    segments: list[str] = field(default_factory=list)
    """UB segments without a living owner."""
    processes: list[str] = field(default_factory=list)
    """Replicas that run unlisted, or that should have ended."""
    pool: list[str] = field(default_factory=list)
    """Findings of the KV-cache pool's own audit."""
    after_stop: list[str] = field(default_factory=list)
    """Files and processes left on the machine by a system that the command started."""
    repaired_flips: int = 0
    """Flipped blocks that had not been read again: the audit found and removed them. No leak."""

    @property
    def all(self) -> list[str]:
        """All of them as lines."""
        counts = [f"{name} = {count}" for name, count in self.counts.items()]
        return [*counts, *self.segments, *self.processes, *self.pool, *self.after_stop]


@dataclass(slots=True)
class ChaosRun:
    """One run.

    Args:
        begun_s: start of the load, on the clock of responses [s].
        duration_s: its duration; shorter than requested if it was interrupted.
        references: asks with a known undisturbed response.
        most_down_s: longest permitted downtime.
        differences: by index of `answers`, the difference from the undisturbed one.
    """

    scenario: str
    seed: int
    session: str
    model: str
    begun_s: float = 0.0
    duration_s: float = 0.0
    asked_s: float = 0.0
    interrupted: bool = False
    references: int = 0
    answers: list[StreamedAnswer] = field(default_factory=list)
    differences: dict[int, str] = field(default_factory=dict)
    logprob_distance: float = 0.0
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    leaks: Leaks = field(default_factory=Leaks)
    most_down_s: float = 15.0
    downs: list[Down] = field(default_factory=list)

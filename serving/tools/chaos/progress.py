"""Progress of a run, on stderr: time left, counts, and a line for each fault."""

import time
from types import TracebackType
from typing import Self

from loadgen.progress_bar import ProgressBar, ProgressConsole
from loadgen.report import numbers
from serving.tools.chaos.result import ChaosRun, Event


class ChaosProgress:
    """A bar over the run's time, and a line for each event.

    Args:
        quiet: print nothing.
    """

    def __init__(self, duration_s: float, *, quiet: bool) -> None:
        self._console = ProgressConsole(quiet=quiet)
        self._bar = ProgressBar("chaos", duration_s, quiet=quiet, console=self._console)
        self._seen: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, at)

    def stage(self, text: str) -> None:
        """Start a new part of the run."""
        self._console.print(f"{time.strftime('%H:%M:%S')} {text} ...")

    def event(self, event: Event) -> None:
        """A fault was injected, or its outcome is known."""
        if self._seen.get(event.number) == event.fate:
            return
        self._seen[event.number] = event.fate
        whom = f" {event.target} (process {event.where})" if event.target else ""
        lasts = f" for {numbers.duration(event.lasts_s)}" if event.lasts_s else ""
        took = f" after {numbers.duration(event.replaced_s)}" if event.replaced_s is not None else ""
        fate = "" if event.fate in ("under way", "passed") else f": {event.fate}{took}"
        self._console.print(f"{numbers.clock(event.at_s):>7} {event.kind}{whom}{lasts}{fate}", markup=False)

    def tick(self, run: ChaosRun, at_s: float, in_flight: int, faults: int) -> None:
        """Advance the time under load."""
        for event in run.events:
            if event.fate == "replaced":
                self.event(event)
        failed = sum(answer.outcome == "failed" for answer in run.answers)
        told = (
            f"faults {len(run.events)}/{faults}, sent {len(run.answers):,}, in flight {in_flight}, failed {failed}, "
            f"other tokens {len(run.differences)}"
        )
        self._bar.update(at_s, told)

"""Settings of a run that the driver needs, besides its jobs."""

from enum import StrEnum

import msgspec

from loadgen.endpoint import Endpoint
from loadgen.errors import UsageError


class Mode(StrEnum):
    """Rule by which a request leaves."""

    OPEN = "open"  # the schedule
    CLOSED = "closed"  # the answer before it


class DriveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One run's way of sending.

    Attributes:
        mode: open: jobs carry `due_s`; closed: they do not.
        concurrency: closed loop: slots; a slot is one user and is held through a whole conversation, including think
        time. Open loop: largest number of requests open at once, None = no cap; waiting for the cap counts as latency
        (`released_s` after `intended_s`), think time holds no slot. duration_s: no request is sent at or after this
        time; None = until the jobs are used up. drain_s: how long requests that are open when sending ends may still
        take; then they are cut (UNFINISHED). workers: sending processes; fewer are used if `concurrency` is smaller,
        since each needs a slot. keep_body, keep_text: store sent bodies and received texts in the records.
        sampled_below: both, in any case, for first turns of measured jobs whose index is below this.
        concurrency_ramp_s: closed loop: slots open evenly over this time, the first one immediately.
    """

    endpoint: Endpoint
    mode: Mode = Mode.OPEN
    concurrency: int | None = None
    duration_s: float | None = None
    drain_s: float = 60.0
    workers: int = 1
    request_timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    keep_body: bool = False
    keep_text: bool = False
    sampled_below: int = 0
    concurrency_ramp_s: float = 0.0

    def check(self) -> None:
        """Refuse what cannot be driven.

        Raises: UsageError for a closed loop without slots, and for numbers that make no sense.
        """
        if self.mode is Mode.CLOSED and self.concurrency is None:
            raise UsageError("a closed loop needs --concurrency")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"--concurrency {self.concurrency}: at least 1")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers}: at least 1")
        for name in ("drain_s", "concurrency_ramp_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative")
        for name in ("request_timeout_s", "connect_timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0")

    def workers_used(self) -> int:
        """Number of processes to start: each needs a slot of its own."""
        return self.workers if self.concurrency is None else min(self.workers, self.concurrency)

    def slots_of(self, worker: int) -> int | None:
        """One worker's part of `concurrency`; the parts sum up to it exactly. None = no cap."""
        if self.concurrency is None:
            return None
        whole, rest = divmod(self.concurrency, self.workers_used())
        return whole + (worker < rest)

    def slot_openings_s(self, worker: int) -> list[float]:
        """When each slot of one worker opens in a closed loop [s from start], ascending.

        Slots are numbered over all workers by turns, so that the total grows evenly under a ramp.
        """
        if self.concurrency is None:
            return []
        step_s = self.concurrency_ramp_s / self.concurrency
        return [slot * step_s for slot in range(worker, self.concurrency, self.workers_used())]

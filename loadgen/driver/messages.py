"""Messages between the main process and its workers, and how they are cut into frames.

A frame is its length (4 bytes, little endian) and one message as msgpack. Both directions of one socket pair:

    main    Setup  Supply Supply ... Prepare         Start  Supply ... NoMoreJobs  [EndSending] [Cut]
    worker                                    Ready         Credit  Tick  Finished ...                 Done | Failed
"""

import struct
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from loadgen.driver.progress import WorkerHealth
from loadgen.endpoint import Endpoint
from loadgen.errors import UsageError
from loadgen.plan import LoadJob
from loadgen.record import RequestOutcome, RequestRecord

# Settings of a run that the driver needs, besides its jobs.


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


# Messages between the main process and its workers, and how they are cut into frames.

_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, tag=True, kw_only=True):
    """First frame. `slots`: this worker's part of the concurrency. `run_id`: beginning of every request id."""

    settings: DriveSettings
    worker: int
    slots: int | None
    slot_openings_s: list[float]
    run_id: str


class Supply(msgspec.Struct, tag=True):
    """Jobs ahead of their time."""

    jobs: list[LoadJob]


class Prepare(msgspec.Struct, tag=True):
    """The first supply is complete: send `WorkerReady` when it is rendered."""


class StartRun(msgspec.Struct, tag=True):
    """Run time 0 is at this moment of `time.monotonic()`."""

    t0: float


class NoMoreJobs(msgspec.Struct, tag=True):
    """All jobs have been supplied."""


class EndSending(msgspec.Struct, tag=True):
    """Send no further requests; open requests get the drain time."""


class Cut(msgspec.Struct, tag=True):
    """Open requests end now."""


class WorkerReady(msgspec.Struct, tag=True):
    """The first supply is rendered."""


class Credit(msgspec.Struct, tag=True):
    """`taken`: jobs started since the run's start. `depth`: how many more than those the worker can hold."""

    taken: int
    depth: int


class Tick(msgspec.Struct, tag=True, kw_only=True):
    """Changes since the last tick (counts, sums), and the present state (`running`, `waiting`).

    Attributes:
        lateness_s: of each request sent, float64 array as bytes.
    """

    sent: int
    tokens: int
    running: int
    waiting: int
    outcomes: dict[RequestOutcome, int]
    ttft_sum_s: float
    ttft_count: int
    tpot_sum_s: float
    tpot_count: int
    lateness_s: bytes


class RequestEnded(msgspec.Struct, tag=True):
    """Record of a finished request."""

    record: RequestRecord


class WorkerDone(msgspec.Struct, tag=True, kw_only=True):
    """The worker has sent, finished and delivered all its requests. Times are run times."""

    health: WorkerHealth
    sending_ended_s: float
    ended_s: float


class WorkerFailed(msgspec.Struct, tag=True):
    """The worker cannot continue. `usage`: caused by invalid user input."""

    usage: bool
    text: str


ToWorker = Setup | Supply | Prepare | StartRun | NoMoreJobs | EndSending | Cut
FromWorker = WorkerReady | Credit | Tick | RequestEnded | WorkerDone | WorkerFailed

_ENCODER = msgspec.msgpack.Encoder()
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """One message, ready to be written."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


def to_worker(body: bytes) -> ToWorker:
    """Read a frame of the main process. Raises: msgspec.DecodeError."""
    return _TO_WORKER.decode(body)


def from_worker(body: bytes) -> FromWorker:
    """Read a frame of a worker. Raises: msgspec.DecodeError."""
    return _FROM_WORKER.decode(body)


class FrameSplitter:
    """Cuts a byte stream into frames, however it was cut on its way."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete with these bytes; take all of them before the next call."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[at + _LENGTH.size : end])
            at = end
        del self._buffer[:at]

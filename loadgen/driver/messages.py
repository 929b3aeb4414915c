"""Messages between the main process and its workers, and how they are cut into frames.

A frame is its length (4 bytes, little endian) and one message as msgpack. Both directions of one socket pair:

    main    Setup  Supply Supply ... Prepare         Start  Supply ... NoMoreJobs  [EndSending] [Cut]
    worker                                    Ready         Credit  Tick  Finished ...                 Done | Failed
"""

import struct
from collections.abc import Iterator

import msgspec

from loadgen.driver.progress import WorkerHealth
from loadgen.driver.settings import DriveSettings
from loadgen.plan import LoadJob
from loadgen.record import RequestOutcome, RequestRecord

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
        """Empty buffer."""
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

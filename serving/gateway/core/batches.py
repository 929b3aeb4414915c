"""Batches of requests: which lines run next, and how a batch stands.

    validating ──► in_progress ──► finalizing ──► completed
        │               │              └────────► expired, at the end of its window
        └──► failed     └──► cancelling ──► cancelled

All that happens to a batch is a record in the order of its time. The records are kept in a store, so that any gateway
that reads them knows the batch: `BatchLedger.apply`. Lines that were sent but have no record run again, with the same
seeds. A ledger knows neither texts nor files, only numbers of lines, and takes the time from its caller.
"""

from collections.abc import Iterator
from enum import StrEnum
from heapq import heappop, heappush

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from serving.errors import LedgerError

RETRY_FIRST_S = 0.5
RETRY_MOST_S = 60.0
"""A line is repeated after `RETRY_FIRST_S`, then twice as late each time, up to this."""
MOST_FAILURES = 3
"""Attempts of a line that ended in a deadline or an internal error, after which that is its result."""
WAIT_STATUSES = frozenset({429, 503, 529})
"""The system has no capacity now: such a line waits until it has, or the batch expires."""
FAULT_STATUSES = frozenset({408, 500, 502, 504})
NOT_AGAIN = frozenset({"engine_lost_repeatedly"})
"""Codes of errors that must not be repeated whatever their status."""


class BatchStatus(StrEnum):
    """OpenAI's names."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class BatchSpec(Struct, frozen=True):
    """What a client ordered.

    Args:
        key, weight: of the API key with which the lines run, see `Tenant`.
        created: Unix time [s].
        window_s: time after which lines without a result expire.
    """

    batch_id: str
    namespace: str
    key: str
    weight: float
    endpoint: str
    input_file_id: str
    created: float
    window_s: float
    metadata: dict[str, str]

    @property
    def expires(self) -> float:
        """When lines without a result expire [Unix time, s]."""
        return self.created + self.window_s

    def seed(self, line: int) -> int:
        """The seed of a line that has none: the same in every run of the batch."""
        return xxh3_64_intdigest(f"{self.batch_id}/{line}".encode()) >> 33


class LineError(Struct, frozen=True):
    """Why a line of an input file cannot be run. `line` counts from 1; None = the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


# Records. Times are Unix times [s].


class InputRead(Struct, frozen=True, tag="read"):
    """The input file is valid."""

    at: float
    lines: int


class InputRefused(Struct, frozen=True, tag="refused"):
    """The input file is not valid: nothing was run."""

    at: float
    errors: tuple[LineError, ...]


class LineDone(Struct, frozen=True, tag="line"):
    """The result of one line, counted from 0. `text`: its line of the output or error file."""

    line: int
    failed: bool
    text: str


class CancelAsked(Struct, frozen=True, tag="cancel"):
    """A client cancelled the batch."""

    at: float


class OutputBegun(Struct, frozen=True, tag="finalizing"):
    """No line runs any more, and how the batch will end."""

    at: float
    end: BatchStatus


class OutputWritten(Struct, frozen=True, tag="written"):
    """The batch has ended; ids of its files, None = it has no such lines."""

    at: float
    output_file_id: str | None = None
    error_file_id: str | None = None


BatchRecord = InputRead | InputRefused | LineDone | CancelAsked | OutputBegun | OutputWritten


class BatchLedger:
    """One batch, as its records tell it, and the lines that this gateway runs."""

    def __init__(self, spec: BatchSpec) -> None:
        self.spec = spec
        self.read: InputRead | None = None
        self.refused: InputRefused | None = None
        self.cancel: CancelAsked | None = None
        self.begun: OutputBegun | None = None
        self.written: OutputWritten | None = None
        self.failed = 0
        self._done = bytearray()
        """1 for each line with a result."""
        self.completed = 0
        self._next = 0
        """All lines before this one were started, or are done."""
        self._running: set[int] = set()
        self._attempts: dict[int, tuple[int, int]] = {}
        """Of lines that were refused: how often in all, and how often because of a fault."""
        self._later: list[tuple[float, int]] = []
        """Refused lines, by the time at which they may run again."""

    # ---- queries -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> BatchStatus:
        """How the batch stands."""
        if self.refused is not None:
            return BatchStatus.FAILED
        if self.begun is not None:
            return BatchStatus.FINALIZING if self.written is None else self.begun.end
        if self.cancel is not None:
            return BatchStatus.CANCELLING
        return BatchStatus.VALIDATING if self.read is None else BatchStatus.IN_PROGRESS

    @property
    def ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.status in ENDED

    @property
    def lines(self) -> int:
        """Lines of its input file, 0 before it was read."""
        return len(self._done)

    @property
    def running(self) -> int:
        """Lines that this gateway runs."""
        return len(self._running)

    def unanswered(self) -> Iterator[int]:
        """Lines without a result."""
        return (line for line, done in enumerate(self._done) if not done)

    def has_result(self, line: int) -> bool:
        """Whether a line has a result."""
        return bool(self._done[line])

    def due_end(self, now: float) -> BatchStatus | None:
        """How the batch ends, if no further line may start; lines that still run then must be stopped."""
        if self.begun is not None or self.refused is not None:
            return None
        if self.cancel is not None:
            return BatchStatus.CANCELLED
        if self.read is not None and self.completed + self.failed == self.lines:
            return BatchStatus.COMPLETED
        return BatchStatus.EXPIRED if now >= self.spec.expires else None

    def next_wake(self) -> float | None:
        """When a refused line may run again; None = there is none."""
        return self._later[0][0] if self._later else None

    # ---- lines that this gateway runs --------------------------------------------------------------------------------

    def start(self, now: float) -> int | None:
        """Take the next line to run; None if there is none now. Refused lines go before new ones."""
        if self.read is None or self.begun is not None or self.due_end(now) is not None:
            return None
        while self._later and self._later[0][0] <= now:
            _, line = heappop(self._later)
            if not self._done[line]:
                self._running.add(line)
                return line
        while self._next < self.lines:
            line, self._next = self._next, self._next + 1
            if not self._done[line]:
                self._running.add(line)
                return line
        return None

    def judge(self, line: int, status: int, code: str, now: float, after_s: float = 0.0) -> bool:
        """Whether a response is the result of a line that runs; otherwise the line waits, and runs again.

        Args:
            status, code: of the response; an empty code if it is no error.
            after_s: its Retry-After.
        Raises: LedgerError if the line does not run.
        """
        if line not in self._running:
            raise LedgerError(f"line {line} does not run")
        refusals, faults = self._attempts.get(line, (0, 0))
        faults += status in FAULT_STATUSES
        again = status in WAIT_STATUSES or (status in FAULT_STATUSES and faults < MOST_FAILURES)
        if not again or code in NOT_AGAIN:
            return True
        self._attempts[line] = refusals + 1, faults
        backoff_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(refusals, 16))
        self._running.discard(line)
        heappush(self._later, (now + max(backoff_s, min(after_s, RETRY_MOST_S)), line))
        return False

    def give_up(self, line: int, now: float) -> None:
        """Note that a line was stopped before it had a result; it may run again."""
        self._running.discard(line)
        if not self._done[line]:
            heappush(self._later, (now, line))

    # ---- records -----------------------------------------------------------------------------------------------------

    def apply(self, record: BatchRecord) -> None:
        """Note a record that is in the store.

        A second result of a line has no effect, nor has what follows the end: a store that appends each record once and
        in the order of one gateway at a time has neither.

        Raises: LedgerError for a record that is impossible now.
        """
        match record:
            case InputRead():
                self._expect(self.read is None and self.refused is None, record)
                self.read, self._done = record, bytearray(record.lines)
            case InputRefused():
                self._expect(self.read is None, record)
                self.refused = record
            case LineDone():
                self._expect(record.line < self.lines and self.written is None, record)
                self._count(record)
            case CancelAsked():
                if self.cancel is None and self.begun is None and self.refused is None:
                    self.cancel = record
            case OutputBegun():
                self._expect(self.begun is None and self.refused is None, record)
                self.begun = record
            case OutputWritten():
                self._expect(self.begun is not None and self.written is None, record)
                self.written = record

    def _count(self, record: LineDone) -> None:
        self._running.discard(record.line)
        self._attempts.pop(record.line, None)
        if self._done[record.line]:
            return
        self._done[record.line] = 1
        if record.failed:
            self.failed += 1
        else:
            self.completed += 1

    def _expect(self, possible: bool, record: BatchRecord) -> None:
        if not possible:
            raise LedgerError(f"batch {self.spec.batch_id} is {self.status}: no place for {type(record).__name__}")

    def check(self) -> None:
        """Check that lines and counts agree.

        Raises: LedgerError if they do not.
        """
        if sum(self._done) != self.completed + self.failed:
            raise LedgerError("the counts do not match the lines with a result")
        if any(self._done[line] for line in self._running):
            raise LedgerError("a line with a result runs")
        waiting = {line for _, line in self._later}
        lost = [n for n in self.unanswered() if n < self._next and n not in self._running and n not in waiting]
        if lost:
            raise LedgerError(f"line {lost[0]} would never run")

"""Batches of requests: which lines run next, and the state of a batch.

    validating ──► in_progress ──► finalizing ──► completed, or expired at the end of the window
        │    └───────────┤
        └──► failed      └──► cancelling ──► cancelled

A batch is kept in a store: its specification, its state, and the results of its lines. A gateway that takes it over
makes a ledger of these, and continues: a line that was sent but has no result runs again, with the same seed. A ledger
handles neither texts nor files, only numbers of lines, counted from 0, and takes the time from its caller.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from heapq import heappop, heappush

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from serving.errors import LedgerError

RETRY_FIRST_S = 0.5
RETRY_MOST_S = 60.0
"""A line is repeated after `RETRY_FIRST_S`, then after twice the time of before, up to this."""
MOST_FAULTS = 3
"""Attempts that end in a deadline or an internal error; the last one is the line's result."""
BUSY_STATUSES = frozenset({429, 503, 529})
"""The system has no capacity now: a line waits until it has, or the batch expires."""
FAULT_STATUSES = frozenset({408, 500})
NOT_AGAIN = frozenset({"engine_lost_repeatedly"})
"""Codes of errors that must not be repeated, regardless of their status."""


class BatchLimits(Struct, frozen=True):
    """Limits of batches.

    Args:
        lines: of an input file.
        running: batches that one gateway runs at once; others wait.
        requests: lines that one gateway runs at once, of all its batches.
    """

    lines: int = 50_000
    running: int = 2
    requests: int = 4

    def share(self, running: int) -> int:
        """Lines of one batch at once, while so many batches run."""
        return max(1, self.requests // max(1, running))


BatchKey = tuple[str, str]
"""Namespace and id of a batch."""


def next_batch(waiting: Sequence[BatchKey], running: Collection[BatchKey]) -> BatchKey:
    """The batch to start next at one gateway: the first of the tenants with the fewest that run there.

    Args:
        waiting: at least one.
    """
    of_tenant = Counter(namespace for namespace, _ in running)
    return min(waiting, key=lambda one: of_tenant[one[0]])


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


_NEXT: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset({BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.CANCELLING}),
    BatchStatus.IN_PROGRESS: frozenset({BatchStatus.FINALIZING, BatchStatus.CANCELLING}),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.FAILED}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
}


class BatchSpec(Struct, frozen=True):
    """A batch as its client ordered it.

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
    output_file_id: str
    error_file_id: str
    created: float
    window_s: float
    metadata: dict[str, str] | None = None

    @property
    def expires(self) -> float:
        """When lines without a result expire [Unix time, s]."""
        return self.created + self.window_s

    def seed(self, line: int) -> int:
        """The seed of a line that has none: the same in every run of the batch."""
        return xxh3_64_intdigest(f"{self.batch_id}/{line}".encode()) >> 33


class LineError(Struct, frozen=True):
    """A reason why an input file cannot be run. `line` counts from 1; None = the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchState(Struct, frozen=True):
    """Progress of a batch, as stored and as reported.

    Args:
        end: how it will end, set when no further line starts.
        total, completed, failed: lines in all, and with a result: a response, or an error.
        times: when it entered each status but the first [Unix time, s].
        has_output, has_errors: whether it has these files, set at the end.
    """

    status: BatchStatus = BatchStatus.VALIDATING
    end: BatchStatus | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    times: dict[BatchStatus, float] = {}
    errors: tuple[LineError, ...] = ()
    has_output: bool = False
    has_errors: bool = False

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.status not in _NEXT

    @property
    def cancellable(self) -> bool:
        """Whether a cancellation has an effect, or had one."""
        return self.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)

    def moved(self, status: BatchStatus, now: float) -> "BatchState":
        """The state after a change of status.

        Raises: LedgerError if that change is impossible.
        """
        if status not in _NEXT.get(self.status, ()):
            raise LedgerError(f"a batch that is {self.status} cannot become {status}")
        return replace(self, status=status, times={**self.times, status: now})


class BatchLedger:
    """Lines of one batch at the gateway that runs it.

    Args:
        state: as stored. Its counts are those of its last write; they are counted again from the results.
    """

    def __init__(self, spec: BatchSpec, state: BatchState) -> None:
        self.spec = spec
        self.state = state
        self._done = bytearray()
        """1 for each line with a result."""
        self._next = 0
        """Lines before this one were started, or have a result."""
        self._running: set[int] = set()
        self._refusals: dict[int, tuple[int, int]] = {}
        """Of lines that were refused: how often in all, and how often because of a fault."""
        self._later: list[tuple[float, int]] = []
        """Refused lines, by the time at which they may run again."""

    # ---- queries -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of lines that run."""
        return len(self._running)

    @property
    def next_retry(self) -> float | None:
        """When a refused line may run again; None = no line was refused."""
        return self._later[0][0] if self._later else None

    def open_lines(self) -> Iterator[int]:
        """Lines without a result."""
        return (line for line, done in enumerate(self._done) if not done)

    def due_end(self, now: float) -> BatchStatus | None:
        """How the batch ends now; None while lines may run. Lines that still run at the end must be stopped."""
        state = self.state
        if state.end is not None:
            return state.end
        if state.completed + state.failed == state.total and state.status is BatchStatus.IN_PROGRESS:
            return BatchStatus.COMPLETED
        if state.status is BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        return BatchStatus.EXPIRED if now >= self.spec.expires else None

    # ---- the batch ---------------------------------------------------------------------------------------------------

    def has_input(self, lines: int, now: float) -> None:
        """Note that the input file is valid, and its number of lines, before the results that are stored."""
        self._done = bytearray(lines)
        self.state = replace(self.state, total=lines, completed=0, failed=0)
        if self.state.status is BatchStatus.VALIDATING:
            self.state = self.state.moved(BatchStatus.IN_PROGRESS, now)

    def refuse(self, errors: tuple[LineError, ...], now: float) -> None:
        """Note that the batch cannot run: its input is invalid or missing, or results cannot be stored."""
        if self.state.status is BatchStatus.VALIDATING:
            self.state = replace(self.state, errors=errors).moved(BatchStatus.FAILED, now)
        else:
            cancelled = self.state.status is BatchStatus.CANCELLING
            self.finalize(BatchStatus.CANCELLED if cancelled else BatchStatus.FAILED, now, errors)

    def cancel(self, now: float) -> None:
        """Note that a client cancelled it. No effect when it ends already."""
        if self.state.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            self.state = self.state.moved(BatchStatus.CANCELLING, now)

    def finalize(self, end: BatchStatus, now: float, errors: tuple[LineError, ...] = ()) -> None:
        """Note that no line starts any more, and how the batch will end. A second call has no effect."""
        if self.state.end is None:
            if end is not BatchStatus.CANCELLED:
                self.state = self.state.moved(BatchStatus.FINALIZING, now)
            self.state = replace(self.state, end=end, errors=errors)

    def finish(self, now: float, *, output: bool, errors: bool) -> None:
        """Note that the files are complete, and which of them there are."""
        assert self.state.end is not None, "finalize comes first"
        self.state = replace(self.state.moved(self.state.end, now), has_output=output, has_errors=errors)

    # ---- its lines ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> int | None:
        """Take the next line to run; None if there is none now. Refused lines go before new ones."""
        if self.state.status is not BatchStatus.IN_PROGRESS or self.due_end(now) is not None:
            return None
        if self._later and self._later[0][0] <= now:
            _, line = heappop(self._later)
            self._running.add(line)
            return line
        while self._next < len(self._done):
            line, self._next = self._next, self._next + 1
            if not self._done[line]:
                self._running.add(line)
                return line
        return None

    def judge(self, line: int, status: int, code: str | None, now: float, after_s: float = 0.0) -> bool:
        """Whether a response is the result of a running line. If not, the line waits, and then runs again.

        Args:
            status, code: of the response; None = it is no error, or has no code.
            after_s: its Retry-After.
        Raises: LedgerError if the line does not run.
        """
        if line not in self._running:
            raise LedgerError(f"line {line} does not run")
        refusals, faults = self._refusals.get(line, (0, 0))
        faults += status in FAULT_STATUSES
        again = status in BUSY_STATUSES or (status in FAULT_STATUSES and faults < MOST_FAULTS)
        if not again or code in NOT_AGAIN:
            return True
        self._refusals[line] = refusals + 1, faults
        backoff_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(refusals, 16))
        self._running.discard(line)
        heappush(self._later, (now + max(backoff_s, min(after_s, RETRY_MOST_S)), line))
        return False

    def drop(self, line: int, now: float) -> None:
        """Note that a running line was stopped without a result. It may run again."""
        if line in self._running:
            self._running.discard(line)
            heappush(self._later, (now, line))

    def done(self, line: int, *, failed: bool) -> None:
        """Note a stored result.

        Raises: LedgerError if the line has one already.
        """
        if line >= len(self._done) or self._done[line]:
            raise LedgerError(f"batch {self.spec.batch_id} has no line {line} that waits for a result")
        self._done[line] = 1
        self._running.discard(line)
        self._refusals.pop(line, None)
        state = self.state
        self.state = replace(state, completed=state.completed + (not failed), failed=state.failed + failed)

    def check(self) -> None:
        """Check that lines and counts agree.

        Raises: LedgerError if they do not.
        """
        if sum(self._done) != self.state.completed + self.state.failed:
            raise LedgerError("the counts do not match the lines with a result")
        if any(self._done[line] for line in self._running):
            raise LedgerError("a line with a result runs")
        waiting = {line for _, line in self._later}
        for line in self.open_lines():
            if line < self._next and (line in self._running) == (line in waiting):
                raise LedgerError(f"line {line} would never run, or run twice")

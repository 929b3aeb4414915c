"""Outbox of a worker: finished requests, counts and credit, collected, and written ten times a second.

A record is encoded when its request ends, a few microseconds each, so that no flush holds the loop for long.
"""

from array import array
from collections import Counter
from collections.abc import Callable

from loadgen.driver.messages import Credit, RequestEnded, Tick, frame
from loadgen.errors import LoadgenError
from loadgen.record import RequestOutcome, RequestRecord

OUTBOX_BYTES = 256 << 20
FLUSH_S = 0.1


class Outbox:
    """Bounded: a main process that stops reading is an error, not a reason to fill the memory."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        unwritten_bytes: Callable[[], int],
        worker: int,
        most_bytes: int = OUTBOX_BYTES,
    ) -> None:
        """Empty.

        Args:
            write: hands bytes to the socket. unwritten_bytes: how many it still holds.
            most_bytes: that may wait to be written.
        """
        self._write = write
        self._unwritten_bytes = unwritten_bytes
        self._worker = worker
        self._most_bytes = most_bytes
        self._frames: list[bytes] = []
        self._bytes = 0
        self._lateness_s = array("d")
        self._outcomes: Counter[RequestOutcome] = Counter()
        self._ttft = [0.0, 0]
        self._tpot = [0.0, 0]
        self._tokens_before = 0
        self.running = 0
        self.all_lateness_s = array("d")
        self.last_started_s = 0.0
        self.last_ended_s = 0.0

    @property
    def sent(self) -> int:
        """Requests that left."""
        return len(self.all_lateness_s)

    def note_sent(self, started_s: float, released_s: float) -> None:
        """Count a request at its start (run times)."""
        self.running += 1
        self._lateness_s.append(started_s - released_s)
        self.all_lateness_s.append(started_s - released_s)
        self.last_started_s = max(self.last_started_s, started_s)

    def note_ended(self, ended_s: float) -> None:
        """Count a request as ended."""
        self.running -= 1
        self.last_ended_s = max(self.last_ended_s, ended_s)

    def add(self, record: RequestRecord) -> None:
        """Deliver a finished request.

        Raises: LoadgenError if the main process has not taken earlier ones for so long that the bound is reached.
        """
        self._outcomes[record.outcome] += 1
        if record.chunk_times and record.outcome in (RequestOutcome.OK, RequestOutcome.SHORT):
            self._note_latency(record)
        encoded = frame(RequestEnded(record))
        self._frames.append(encoded)
        self._bytes += len(encoded)
        if self._bytes + self._unwritten_bytes() > self._most_bytes:
            raise LoadgenError(
                f"worker {self._worker}: results are not taken, {self._most_bytes >> 20} MiB are waiting"
            )

    def flush(self, tokens: int, waiting: int, credit: Credit) -> None:
        """Write all pending records, a tick and the credit.

        Args:
            tokens: content chunks received since the start. waiting: requests that the cap holds back.
        """
        tick = Tick(
            sent=len(self._lateness_s),
            tokens=tokens - self._tokens_before,
            running=self.running,
            waiting=waiting,
            outcomes=dict(self._outcomes),
            ttft_sum_s=self._ttft[0],
            ttft_count=int(self._ttft[1]),
            tpot_sum_s=self._tpot[0],
            tpot_count=int(self._tpot[1]),
            lateness_s=self._lateness_s.tobytes(),
        )
        self._write(b"".join((*self._frames, frame(tick), frame(credit))))
        self._frames.clear()
        self._bytes = 0
        self._tokens_before = tokens
        self._lateness_s = array("d")
        self._outcomes.clear()
        self._ttft, self._tpot = [0.0, 0], [0.0, 0]

    def _note_latency(self, record: RequestRecord) -> None:
        """For the live display only; reported figures come from the records."""
        times = record.chunks()
        self._ttft[0] += times[0] - record.intended_s
        self._ttft[1] += 1
        tokens = record.output_tokens or len(times)
        if tokens > 1:
            self._tpot[0] += (times[-1] - times[0]) / (tokens - 1)
            self._tpot[1] += 1

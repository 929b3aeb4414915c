"""Arrivals of a workload at a supernode's gateways: at their times, in a closed loop, or as jobs whose turns wait.

    requests, open loop     each at its `arrival_s`; at most one arrival is in the event queue
    requests, closed loop   the next one whenever a request has ended
    jobs                    each at its `start_s`, or in a closed loop whenever a job has ended; a turn its pause after
                            all turns that it waits for have ended

`gateway_s`, the gateway's time per request, is added to each arrival instead of being an event of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from serving.gateway.core.kv_hints import SessionName
from serving.virtual.event_queue import EventQueue
from serving.virtual.journal_book import Book
from serving.virtual.pauses import SessionTurn
from serving.virtual.result import NO_PAUSE
from serving.virtual.workload.columns import RequestStream, TraceRequest
from serving.virtual.workload.jobs import TraceJob

_CALLS = ("tool_use", "tool_calls", "function_call")
"""Reasons of recorded answers that end with tool calls."""
_ONE_TOOL = ("tool",)
"""Traces do not name tools."""

Enter = Callable[[TraceRequest, float], None]
"""Submits a request to a gateway. Arguments: the request, and when it was sent [s]."""


@dataclass(slots=True)
class OpenJob:
    """A job that has started. `unsent`: turns that have not entered; `open`: turns that have not ended."""

    job: TraceJob
    unsent: int
    open: int
    ended_s: dict[int, float] = field(default_factory=dict)
    """When each turn ended."""

    def due_s(self, turn: int) -> float | None:
        """When a turn is to be sent; None while a turn that it waits for is open."""
        ended_s, waits_for = self.ended_s, self.job.turns[turn].waits_for
        if not all(wait in ended_s for wait in waits_for):
            return None
        return max(ended_s[wait] for wait in waits_for) + self.job.turns[turn].pause_s

    def after(self, turn: int) -> Iterator[tuple[int, float]]:
        """The turns that can be sent now that this one has ended, and when each is due."""
        for number, one in enumerate(self.job.turns):
            if turn in one.waits_for and (due_s := self.due_s(number)) is not None:
                yield number, due_s


class ArrivalFeed:
    """Sends the requests of one workload.

    Attributes:
        more: whether requests are still to arrive.
    """

    def __init__(
        self, workload: RequestStream, queue: EventQueue, book: Book, gateway_s: float, enter: Enter,
        on_all: Callable[[], None],
    ) -> None:  # fmt: skip
        """Nothing is scheduled yet.

        Args:
            on_all: called when the last request has arrived.
        """
        self._workload = workload
        self._queue = queue
        self._book = book
        self._gateway_s = gateway_s
        self._enter = enter
        self._on_all = on_all
        self._requests: Iterator[TraceRequest] = iter(workload.requests)
        self._upcoming: TraceRequest | None = None
        self._sent = 0
        """Requests of a closed loop on their way to a gateway."""
        self._jobs: Iterator[TraceJob] = iter(workload.jobs or ())
        self._next_job: TraceJob | None = None
        self._active = 0
        """Jobs with turns that have not entered."""
        self._turns: dict[int, tuple[OpenJob, int]] = {}
        """The job and the turn of each open row."""
        self.more = True

    def begin(self) -> None:
        """Schedule the first arrivals."""
        concurrency = self._workload.concurrency
        if self._workload.jobs is not None:
            self._next_job = next(self._jobs, None)
            self._book.on_end = self._turn_ended
            for _ in range(concurrency or 1):
                self._schedule_job()
            self._look_whether_all()
        elif concurrency is None:
            self._arrive(None)
        else:
            self._upcoming = next(self._requests, None)
            self.more = self._upcoming is not None
            self._book.on_end = self._send_next
            for _ in range(concurrency):
                self._send_next(0)

    def session_turn(self, row: int) -> SessionTurn | None:
        """The job of an open request, as a session, and whether its answer calls tools; None if it is of no job."""
        found = self._turns.get(row)
        if found is None:
            return None
        job, turn = found[0].job, found[0].job.turns[found[1]]
        named = SessionName(str(job.number), str(turn.branch) if turn.branch else "")
        return SessionTurn(named, _ONE_TOOL if turn.stop in _CALLS else ())

    # ---- requests --------------------------------------------------------------------------------------------------

    def _arrive(self, request: TraceRequest | None) -> None:
        if request is not None:
            self._enter(request, request.arrival_s)
        following = next(self._requests, None)
        self.more = following is not None
        if following is not None:
            self._queue.at(following.arrival_s + self._gateway_s, self._arrive, following)
            return
        self._on_all()

    def _send_next(self, _row: int) -> None:
        """Send the next request of a closed loop now."""
        request = self._upcoming
        if request is not None:
            self._upcoming = next(self._requests, None)
            self._sent += 1
            now = self._queue.now
            self._queue.at(now + self._gateway_s, self._arrive_in_loop, (request, now))

    def _arrive_in_loop(self, arrival: tuple[TraceRequest, float]) -> None:
        self._sent -= 1
        self.more = self._upcoming is not None or self._sent > 0
        self._enter(*arrival)
        if not self.more:
            self._on_all()

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def _schedule_job(self) -> None:
        """Schedule the next job: at its time, or in a closed loop now."""
        job = self._next_job
        if job is None:
            return
        self._next_job = next(self._jobs, None)
        started = OpenJob(job, len(job.turns), len(job.turns))
        self._active += 1
        closed = self._workload.concurrency is not None
        self._send_turn(started, 0, self._queue.now if closed else job.start_s)

    def _send_turn(self, job: OpenJob, turn: int, at_s: float) -> None:
        self._queue.at(at_s + self._gateway_s, self._turn_arrives, (job, turn, at_s))

    def _turn_arrives(self, arrival: tuple[OpenJob, int, float]) -> None:
        job, number, sent_s = arrival
        turn, tokens = job.job.turns[number], self._workload.block_tokens
        if number == 0 and self._workload.concurrency is None:
            self._schedule_job()
        job.unsent -= 1
        self._active -= not job.unsent
        self._turns[len(self._book.rows)] = job, number
        repeated = min(turn.repeated_blocks * tokens, turn.prompt_tokens)
        self._book.next_turn = (
            job.job.number,
            len(job.job.turns),
            turn.pause_s if turn.waits_for else NO_PAUSE,
            repeated,
        )
        self._enter(TraceRequest(sent_s, turn.prompt_tokens, turn.output_tokens, turn.blocks()), sent_s)
        self._look_whether_all()

    def _turn_ended(self, row: int) -> None:
        job, turn = self._turns.pop(row)
        job.open -= 1
        job.ended_s[turn] = self._queue.now
        for number, due_s in job.after(turn):
            self._send_turn(job, number, due_s)
        if not job.open and self._workload.concurrency is not None:
            self._schedule_job()

    def _look_whether_all(self) -> None:
        self.more = self._active > 0 or self._next_job is not None
        if not self.more:
            self._on_all()

"""One conversation: its turns one after another, each with its stamps, and the history between them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from loadgen.client import Digester, Exchange, Failure, Keep, LoadClient, PreparedRequest, fill_record
from loadgen.driver.outbox import Outbox
from loadgen.driver.pacer import Pacer
from loadgen.driver.supply import RenderedTurn
from loadgen.endpoint import Endpoint, History
from loadgen.plan import LoadJob, Turn
from loadgen.record import DELIBERATE, SUCCESSES, RequestOutcome, RequestRecord

# Slots for a bounded number of concurrent requests, granted in the order of requests.


class Slots:
    """Counting semaphore that records when each slot was granted, to tell waiting for a slot from slow use of it."""

    def __init__(self, slots: int | None) -> None:
        """All free. None: no bound."""
        self._free = slots
        self._waiting: deque[asyncio.Future[float]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that are held back now."""
        return len(self._waiting)

    async def acquire(self) -> float | None:
        """Wait for a slot.

        Returns: when it was given [monotonic]; None if it was free all the time.
        Raises: asyncio.CancelledError; then no slot is held.
        """
        if self._free is None:
            return None
        if self._free > 0:
            self._free -= 1
            return None
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was ours already
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Give a slot back; the one that waits longest has it from this moment."""
        if self._free is None:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(time.monotonic())
                return
        self._free += 1


# One conversation: its turns one after another, each with its stamps, and the history between them.

GOES_ON = SUCCESSES | DELIBERATE | {RequestOutcome.SHORT}
"""After these a conversation with history continues. After a failure it ends: the next turn would build on a
response that does not exist. Without history each turn is independent and is sent in any case."""


UNREACHABLE_PAUSE_S = 0.1
"""Pause of a closed loop's slot after a failed connection [s]: immediate retries would use CPU time that the server may
need to restart."""

_NOTHING_SAID: History = ""
_BOTH = Keep(body=True, text=True)
_FORCED = (b'"ignore_eos":true', b'"ignore_eos": true')


class Phase(Enum):
    """Phase of a conversation."""

    NEW = auto()  # its task has not run yet
    WAITING = auto()  # for the cap
    SENDING = auto()  # or receiving
    THINKING = auto()  # between two turns
    OVER = auto()  # sends no more requests; the last response may still be under evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """State that all conversations of a worker share.

    Attributes:
        t0: run time 0 [monotonic]. slots: the cap of an open loop; unbounded in a closed one.
        may_send: whether a request may be sent now.
        render: renders a job's turn after a history, ready to be written.
        sampled_below: see `DriveSettings`.
        on_last_sent: called when a conversation's last request is sent, or when it is clear that none will be.
    """

    worker: int
    t0: float
    endpoint: Endpoint
    client: LoadClient
    digester: Digester
    pacer: Pacer
    slots: Slots
    outbox: Outbox
    may_send: Callable[[], bool]
    render: Callable[[LoadJob, int, History], PreparedRequest]
    on_last_sent: Callable[[], None]
    sampled_below: int = 0


class LoadSession:
    """Runs one conversation; its task may be cancelled while it is WAITING or THINKING.

    Attributes:
        phase: its current phase.
    """

    def __init__(self, context: SessionContext, rendered: RenderedTurn, on_over: Callable[[float], None]) -> None:
        """Session without a request sent.

        Args:
            on_over: called once, with the run time from which another conversation may replace this one.
        """
        self._context = context
        self._job: LoadJob = rendered.job
        self._request = rendered.request
        self._on_over = on_over
        self._last_sent = False
        self._branched = any(turn.waits_for for turn in rendered.job.conversation.turns)
        self._unsent = len(rendered.job.conversation.turns)
        """Turns of a conversation with branches that were not sent yet."""
        self._idle: set[asyncio.Task[None]] = set()
        """Tasks of such turns that are not sending."""
        self.phase = Phase.NEW

    async def run(self, intended_s: float) -> None:
        """Send every turn; the first was intended at this run time.

        Raises: as `_run_line`.
        """
        if self._branched:
            await self._run_branches(intended_s)
        else:
            await self._run_line(intended_s)

    def stop_idle(self, task: "asyncio.Task[None]") -> None:
        """Cancel what is not sending: the session's own task, or those of its turns."""
        if self._branched:
            for one in [*self._idle]:
                one.cancel()
        elif self.phase in (Phase.WAITING, Phase.THINKING):
            task.cancel()

    async def _run_branches(self, intended_s: float) -> None:
        """Send turns that wait for several others, each in a task of its own."""
        turns = self._job.conversation.turns
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Future[float | None]] = [loop.create_future() for _ in turns]
        tasks = [loop.create_task(self._run_turn(number, intended_s, ends)) for number in range(len(turns))]
        free_s = intended_s
        try:
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                    raise result
            free_s = max((end.result() or free_s for end in ends), default=free_s)
        finally:
            self._end(free_s)

    async def _run_turn(self, number: int, intended_s: float, ends: "list[asyncio.Future[float | None]]") -> None:
        """Send one turn its pause after those that it waits for; never if one of those was not sent.

        Effects: sets its end, None if it was not sent.
        """
        context, turn = self._context, self._job.conversation.turns[number]
        own = asyncio.current_task()
        assert own is not None
        waits_for = turn.waits_for or ([number - 1] if number else [])
        self._idle.add(own)
        try:
            before = [await asyncio.shield(ends[wait]) for wait in waits_for]
            sent_s = [end_s for end_s in before if end_s is not None]
            if len(sent_s) < len(before):
                return
            if number:
                intended_s = max(sent_s) + turn.think_s
                await context.pacer.sleep_until(context.t0 + intended_s)
                if not context.may_send():
                    return
            request = context.render(self._job, number, _NOTHING_SAID) if number else self._request
            record = self._begin_record(number, turn, intended_s, request)
            exchange = await self._send(record, request, last=False)
            if exchange is None:
                return
            ends[number].set_result(_free_s(exchange, record))
            await self._finish(record, exchange)
        finally:
            self._idle.discard(own)
            if not ends[number].done():
                ends[number].set_result(None)

    async def _run_line(self, intended_s: float) -> None:
        """Send turns one after another; the first was intended at this run time.

        Raises: asyncio.CancelledError; a request that waited for the cap is then delivered as UNFINISHED, because
            omitting it would hide its wait.
        """
        context, conversation = self._context, self._job.conversation
        free_s, history = intended_s, _NOTHING_SAID
        try:
            for number, turn in enumerate(conversation.turns):
                last = number == len(conversation.turns) - 1
                record = self._begin_record(number, turn, intended_s, self._request)
                exchange = await self._send(record, self._request, last=last)
                if exchange is None:
                    return
                ended_s = exchange.ended_s or record.released_s
                free_s = _free_s(exchange, record)
                if last:
                    self._end(free_s)
                text = await self._finish(record, exchange)
                if last or not context.may_send() or (conversation.history and record.outcome not in GOES_ON):
                    return
                if conversation.history and record.outcome is not RequestOutcome.REFUSED_AS_MEANT:
                    history = context.endpoint.extend(history, turn, text)
                following = conversation.turns[number + 1]
                self._request = context.render(self._job, number + 1, history)
                intended_s = ended_s + following.think_s
                self.phase = Phase.THINKING
                await context.pacer.sleep_until(context.t0 + intended_s)
                if not context.may_send():
                    return
        finally:
            self._end(free_s)

    async def _send(self, record: RequestRecord, request: PreparedRequest, *, last: bool) -> Exchange | None:
        """Send a request as soon as the cap allows; None if no more requests may be sent."""
        context = self._context
        if not context.may_send():
            self._deliver_unsent(record)
            return None
        self.phase = Phase.WAITING
        try:
            given_s = await context.slots.acquire()
        except asyncio.CancelledError:
            self._deliver_unsent(record)
            raise
        if given_s is not None:
            record.released_s = given_s - context.t0
        try:
            if not context.may_send():
                self._deliver_unsent(record)
                return None
            self.phase = Phase.SENDING
            if self._branched:
                own = asyncio.current_task()
                self._idle = {one for one in self._idle if one is not own}
                self._unsent -= 1
                last = not self._unsent
            context.outbox.note_sent(time.monotonic() - context.t0, record.released_s)
            if last:
                self._note_last_sent()
            exchange = await context.client.exchange(request, self._job.behaviour(record.turn))
            context.outbox.note_ended(exchange.ended_s or record.released_s)
            return exchange
        finally:
            context.slots.release()

    async def _finish(self, record: RequestRecord, exchange: Exchange) -> str:
        """Evaluate a response and deliver its record. Returns: the response's text."""
        context = self._context
        turn = self._job.conversation.turns[record.turn]
        found = await context.digester.digest(exchange, expected_tokens(turn, context.endpoint))
        sampled = record.index < context.sampled_below and not (record.warmup or record.turn)
        fill_record(record, exchange, found, _BOTH if sampled else context.client.keep)
        context.outbox.add(record)
        return found.text

    def _deliver_unsent(self, record: RequestRecord) -> None:
        """Deliver the record of a request that was due but not sent. In a closed loop a request is due only when a slot
        is free, so there is no record to deliver.
        """
        if self._job.due_s is None:
            return
        record.error = "the run ended before a slot was free"
        record.released_s = record.ended_s = time.monotonic() - self._context.t0
        self._context.outbox.add(record)

    def _begin_record(self, number: int, turn: Turn, intended_s: float, request: PreparedRequest) -> RequestRecord:
        """Create a request's record with the facts known before sending."""
        return RequestRecord(
            index=self._job.index,
            turn=number,
            worker=self._context.worker,
            warmup=self._job.warmup,
            conduct=self._job.behaviour(number).conduct.value,
            tenant=self._job.conversation.tenant,
            intended_s=intended_s,
            released_s=intended_s,
            planned_input_tokens=turn.input_tokens,
            planned_output_tokens=turn.output_tokens,
            asked_input_tokens=turn.asked_input_tokens,
            asked_output_tokens=turn.asked_output_tokens,
            turns_left_out=0 if number else self._job.conversation.turns_left_out,
            hash_ids=turn.hash_ids,
            block_tokens=turn.block_tokens,
            job_turns=len(self._job.conversation.turns),
            think_s=turn.think_s,
            waits_for=turn.waits_for,
            request_id=request.request_id,
        )

    def _end(self, free_s: float) -> None:
        """No request follows; report it once."""
        if self.phase is not Phase.OVER:
            self.phase = Phase.OVER
            self._note_last_sent()
            self._on_over(free_s)

    def _note_last_sent(self) -> None:
        if not self._last_sent:
            self._last_sent = True
            self._context.on_last_sent()


def _free_s(exchange: Exchange, record: RequestRecord) -> float:
    """Run time from which another request may follow."""
    ended_s = exchange.ended_s or record.released_s
    return ended_s + (UNREACHABLE_PAUSE_S if exchange.failure is Failure.CONNECT else 0.0)


def expected_tokens(turn: Turn, endpoint: Endpoint) -> int | None:
    """Tokens that the response must have; None if the model may stop at any length.

    An exact body (a replay) decides for itself. Inside a JSON string the quotes would be escaped, so that these bytes
    can only be a field.
    """
    forced = endpoint.ignore_eos if turn.body is None else any(field in turn.body for field in _FORCED)
    return turn.output_tokens if forced else None

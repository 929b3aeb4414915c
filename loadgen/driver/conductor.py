"""A worker's run from the first job to the last record: when each request starts, and when the run is complete.

Sending ends by itself when every job is used up and every conversation's last request has left; or when the duration is
over; or when the main process requests it. From then on open requests have the drain time, after which they are cut.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from loadgen.client import Digester, Keep, LoadClient, PreparedRequest
from loadgen.client.request import RequestWriter
from loadgen.driver.health import Heartbeat, percentile
from loadgen.driver.loops import ClosedLoop, OpenLoop
from loadgen.driver.messages import (
    Credit,
    Cut,
    EndSending,
    Mode,
    NoMoreJobs,
    Prepare,
    Setup,
    StartRun,
    Supply,
    ToWorker,
    WorkerDone,
    WorkerReady,
    frame,
)
from loadgen.driver.outbox import FLUSH_S, Outbox
from loadgen.driver.pacer import Pacer
from loadgen.driver.progress import WorkerHealth
from loadgen.driver.session import LoadSession, SessionContext, Slots
from loadgen.driver.supply import RenderedTurn, Stock
from loadgen.endpoint import History
from loadgen.errors import LoadgenError
from loadgen.plan import LoadJob

EVALUATION_DEADLINE_S = 10.0
"""After the cut. The main process ends a worker that takes longer still."""

_T = TypeVar("_T")


class Conductor:
    """Runs one worker's share of a run; used once."""

    def __init__(self, setup: Setup, write: Callable[[bytes], None], unwritten_bytes: Callable[[], int]) -> None:
        """Belongs to the running loop.

        Args:
            write, unwritten_bytes: the socket to the main process.
        """
        self._setup = setup
        self._settings = setup.settings
        self._write = write
        self._pacer = Pacer()
        self._heartbeat = Heartbeat(self._pacer)
        self._writer = RequestWriter(setup.settings.endpoint)
        self._stock = Stock(lambda job: self._render(job, 0, ""), self._pacer)
        self._outbox = Outbox(write, unwritten_bytes, setup.worker)
        self._slots = Slots(setup.slots if setup.settings.mode is Mode.OPEN else None)
        self._sessions: dict[LoadSession, asyncio.Task[None]] = {}
        self._unsent = 0
        self._sending = True
        self._flush_s = 0.0
        self._credited = 0
        self._t0 = 0.0
        self._loop: OpenLoop | ClosedLoop | None = None
        loop = asyncio.get_running_loop()
        self._prepare: asyncio.Future[None] = loop.create_future()
        self._start: asyncio.Future[float] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        self._rendering = loop.create_task(self._stock.render_all())
        self._rendering.add_done_callback(self._surface)

    def handle(self, message: ToWorker) -> None:
        """Jobs and orders of the main process."""
        match message:
            case Supply(jobs):
                self._stock.add(jobs)
            case NoMoreJobs():
                self._stock.complete()
                self._look_whether_sent()
            case Prepare():
                self._prepare.set_result(None)
            case StartRun(t0):
                self._start.set_result(t0)
            case EndSending():
                self._end_sending()
            case Cut():
                self._cut_now()
            case Setup():
                raise AssertionError("set up twice")

    def fail(self, error: BaseException) -> None:
        """Note an error of our own, for instance in a callback: `run` raises it."""
        if not self._over.done():
            self._over.set_exception(error)

    async def run(self) -> WorkerDone:
        """Execute the whole run.

        Returns: the last message, to be sent when all else is.
        Raises: UsageError if a job does not fit the endpoint; LoadgenError if the rest of the program does not keep up
            at all; anything else is a mistake of ours.
        """
        await self._or_failed(self._prepare)
        await self._or_failed(asyncio.ensure_future(self._stock.rendered()))
        self._write(frame(WorkerReady()))
        self._t0 = await self._or_failed(self._start)
        context = self._open_context()
        self._heartbeat.start(self._t0)
        self._flush_s = self._t0
        self._flush_and_again()
        if self._settings.duration_s is not None:
            self._pacer.call_at(self._t0 + self._settings.duration_s, self._end_sending)
        self._loop = self._make_loop()
        if self._sending:
            self._loop.begin()
        self._look_whether_sent()
        self._look_whether_over()
        try:
            await self._over
            health = self._health(self._loop.starved_s)
        finally:
            self._heartbeat.stop()
            self._rendering.cancel()
            self._pacer.close()
            await context.client.close()
        self._flush()
        return WorkerDone(health=health, sending_ended_s=self._outbox.last_started_s, ended_s=self._outbox.last_ended_s)

    def _open_context(self) -> SessionContext:
        """Open the session desk, which needs the run's start time."""
        settings = self._settings
        client = LoadClient(
            settings.endpoint,
            t0=self._t0,
            keep=Keep(body=settings.keep_body, text=settings.keep_text),
            connect_timeout_s=settings.connect_timeout_s,
            request_timeout_s=settings.request_timeout_s,
        )
        self._context = SessionContext(
            worker=self._setup.worker,
            t0=self._t0,
            endpoint=settings.endpoint,
            client=client,
            digester=Digester(),
            pacer=self._pacer,
            slots=self._slots,
            outbox=self._outbox,
            may_send=self._may_send,
            render=self._render,
            on_last_sent=self._last_sent,
            sampled_below=settings.sampled_below,
        )
        return self._context

    def _make_loop(self) -> OpenLoop | ClosedLoop:
        if self._settings.mode is Mode.OPEN:
            return OpenLoop(self._stock, self._pacer, self._start_session, self._t0, self._settings.duration_s)
        openings_s = self._setup.slot_openings_s
        return ClosedLoop(self._stock, self._pacer, self._start_session, self._t0, openings_s, self._send_credit)

    def _render(self, job: LoadJob, number: int, history: History) -> PreparedRequest:
        """One turn's request. Raises: UsageError if the prompt does not fit the endpoint."""
        body = self._settings.endpoint.body(job.conversation.turns[number], history)
        return self._writer.prepare(body, f"{self._setup.run_id}-{job.index}-{number}")

    def _may_send(self) -> bool:
        end_s = self._settings.duration_s
        return self._sending and (end_s is None or time.monotonic() - self._t0 < end_s)

    def _start_session(self, rendered: RenderedTurn, intended_s: float) -> None:
        session = LoadSession(self._context, rendered, self._session_over)
        self._unsent += 1
        task = asyncio.get_running_loop().create_task(session.run(intended_s))
        self._sessions[session] = task
        task.add_done_callback(lambda done: self._session_done(session, done))
        if self._loop is not None and self._loop.taken - self._credited >= max(1, self._loop.depth // 4):
            self._send_credit()

    def _session_over(self, free_s: float) -> None:
        """A conversation's last response has ended; its evaluation may still continue."""
        if self._loop is not None:
            self._loop.freed(free_s)

    def _session_done(self, session: LoadSession, task: "asyncio.Task[None]") -> None:
        self._sessions.pop(session, None)
        self._surface(task)
        self._look_whether_over()

    def _last_sent(self) -> None:
        self._unsent -= 1
        self._look_whether_sent()

    def _look_whether_sent(self) -> None:
        if self._loop is not None and not self._loop.pending and not self._unsent and self._stock.complete_and_empty:
            self._end_sending()

    def _end_sending(self) -> None:
        """No request leaves any more: waiting and thinking sessions end, requests in flight get the drain time."""
        if not self._sending:
            return
        self._sending = False
        if self._loop is None:  # stopped while it was to start
            return
        self._loop.end()
        for session, task in [*self._sessions.items()]:
            session.stop_idle(task)
        self._pacer.call_at(time.monotonic() + self._settings.drain_s, self._cut_now)
        self._look_whether_over()

    def _cut_now(self) -> None:
        """Cut open requests, with the received part of their responses."""
        self._end_sending()
        if self._loop is not None:
            self._context.client.cut()
            self._pacer.call_at(time.monotonic() + EVALUATION_DEADLINE_S, self._give_up)

    def _give_up(self) -> None:
        """Fail the run if responses are still not evaluated, a while after all connections were cut."""
        self.fail(LoadgenError(f"{len(self._sessions)} answers could not be evaluated in time"))

    def _look_whether_over(self) -> None:
        if not self._sending and not self._sessions and not self._over.done():
            self._over.set_result(None)

    def _flush_and_again(self) -> None:
        """Write all pending records, ten times a second."""
        now_s = time.monotonic()
        if now_s >= self._flush_s:
            self._flush()
            while self._flush_s <= now_s:
                self._flush_s += FLUSH_S
        self._pacer.call_at(self._flush_s, self._flush_and_again)

    def _flush(self) -> None:
        if self._loop is not None:
            self._credited = self._loop.taken
            credit = Credit(self._loop.taken, self._loop.depth)
            self._outbox.flush(self._context.client.meter.chunks, self._slots.waiting, credit)

    def _send_credit(self) -> None:
        """Report free capacity immediately instead of at the next flush."""
        if self._loop is not None:
            self._credited = self._loop.taken
            self._write(frame(Credit(self._loop.taken, self._loop.depth)))

    def _health(self, starved_s: float) -> WorkerHealth:
        lags_s, lateness_s = sorted(self._heartbeat.lags_s()), sorted(self._outbox.all_lateness_s)
        return WorkerHealth(
            worker=self._setup.worker,
            sent=self._outbox.sent,
            cpu_share=self._heartbeat.cpu_share(),
            loop_lag_p50_s=percentile(lags_s, 50),
            loop_lag_p99_s=percentile(lags_s, 99),
            loop_lag_max_s=percentile(lags_s, 100),
            lateness_p50_s=percentile(lateness_s, 50),
            lateness_p99_s=percentile(lateness_s, 99),
            lateness_max_s=percentile(lateness_s, 100),
            starved_s=starved_s,
            gc_pause_max_s=self._heartbeat.gc_pause_max_s,
            late_digests=self._context.digester.overruns,
            cpu_s=self._heartbeat.cpu_s(),
            late_s=self._heartbeat.late_s,
            denied_s=self._heartbeat.denied_s,
        )

    async def _or_failed(self, awaited: "asyncio.Future[_T]") -> _T:
        """Wait for a result or for a failure of the run, which is raised."""
        both: list[asyncio.Future[Any]] = [awaited, self._over]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            self._over.result()
        return await awaited

    def _surface(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

"""The thread that drives one engine and does all blocking on its behalf.

Other threads post events through a deque; output is delivered by one callback per turn, so a whole step is sent as one
frame. Steps and KV moves never wait for each other: a second thread passes on events that arrive during a step, so a
handoff is pulled during the step and joins the next one. A lock protects the engine; it is free while the executor
works. The output of one step is delivered while the next one runs, so encoding does not delay steps.

    engine thread   events, plan │ execute ······················ │ events, finish
    second thread                     deliver, events, start pulls

While a batch only decodes and no events arrive, planning does not delay steps either: the next step is planned and laid
out while the current one runs, and starts as soon as its tokens are available. These are booked concurrently.

    engine thread   execute n ························· │ execute n + 1 ·····················
    second thread      foresee n + 1, prepare it            book n, deliver, foresee n + 2 ...

The engine thread of a rank without a step takes part in its peers' steps instead of sleeping.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from hardware.clock import Clock
from serving.errors import GroupError, ServingError
from serving.instance.core import events as e
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.ports import ContextCache, KvTransport, PreparingExecutor, StepExecutor
from serving.instance.live.engine_news import DurationReporter, LoopEvent
from serving.instance.live.kv_moves import KvMoves
from serving.instance.live.peer_service import PeerService
from serving.instance.live.pool_access import PoolWorker
from serving.values.health import StepLimits, StepWatch
from serving.values.news import ends
from serving.values.orders import Add
from serving.values.step_plan import StepPlan, StepResult

logger = logging.getLogger(__name__)


MAX_IDLE_WAIT_S = 1.0
SNAPSHOT_PERIOD_S = 0.1
TURN_S = 0.2
"""A turn without a step that takes longer counts as hanging."""
STOP_S = 5.0
STEP_LIMITS = StepLimits(floor_s=2.5, factor=4.0, first_s=30.0)


class EngineLoop:
    """Owns the engine's thread.

    Args:
        on_step: called with the tokens and the duration [s] of each step.
        cache: the KV-cache pool; required if the engine's settings enable it.
        time_scale: seconds of `clock` per real second.
        pulls_at_once: see `KvMoves`.
        step_limits: how long a step may take before the engine counts as hanging, in time of `clock`.
        deliver: called with the output of one turn, by one thread at a time.
        on: receives the engine's events; the engine's own `on`, unless they are recorded.
        times: reports durations; None = none are reported.
    """

    def __init__(
        self,
        engine: InstanceEngine,
        executor: StepExecutor,
        transport: KvTransport,
        clock: Clock,
        deliver: Callable[[list[LoopEvent]], None],
        name: str = "engine",
        on_step: Callable[[int, float], None] | None = None,
        cache: ContextCache | None = None,
        time_scale: float = 1.0,
        pulls_at_once: int = 1,
        step_limits: StepLimits = STEP_LIMITS,
        on: e.EngineOn | None = None,
        times: DurationReporter | None = None,
    ) -> None:
        self.engine = engine
        self._on = engine.on if on is None else on
        self._executor = executor
        self._preparing = executor if isinstance(executor, PreparingExecutor) else None
        self._clock = clock
        self._send = deliver
        self._outbox: deque[LoopEvent] = deque()
        self._delivering = threading.Lock()
        self._on_step = on_step
        self.time_scale = time_scale
        """Seconds of the engine's clock per real second."""
        self._events: deque[e.EngineEvent] = deque()
        self._posted = self._reported = (0, 0)
        """Numbers of prompts and of their tokens, posted and passed to the engine; each is written by one thread."""
        self._times = times
        self._wake = threading.Event()
        self._peers = PeerService(executor, clock, self._wake.wait, time_scale, step_limits.first_s)
        self._lock = threading.Lock()
        self._stepping = False
        self._watch = StepWatch(step_limits)
        self._step_tokens = 0
        self._meanwhile = threading.Event()
        self._ahead: tuple[StepPlan, Callable[[], StepResult]] | None = None
        """The step that may follow the running one, and the function that runs it."""
        self._unbooked: StepResult | None = None
        """Result of the step before the running one."""
        self._stopping = False
        self._crash: BaseException | None = None
        self._busy_since: float | None = None
        self._turn_since: float | None = None
        """Start of the current turn; None between turns."""
        self._last_turn = clock.now()
        self._snapshot_at: float = clock.now()
        self.snapshot = engine.snapshot(clock.now())
        """The engine's statistics, at most `SNAPSHOT_PERIOD_S` old while it works, up to date at an end; any thread."""
        self.busy_s = self.first_step_s = 0.0
        """Time spent in steps so far [s], and in the first one, with cold memory [real s]; 0 before it."""
        self.moves = KvMoves(
            transport, clock, self.post, self._deliver, name, pulls_at_once, tell_times=times is not None
        )
        """Any thread may read its counts."""
        self._pool = PoolWorker(cache, self.post, name) if cache is not None else None
        self._thread = threading.Thread(target=self._run, args=(self._turn,), name=name, daemon=True)
        self._beside = threading.Thread(target=self._run, args=(self._beside_step,), name=f"{name}-beside", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._beside.start()

    def stop(self, timeout_s: float = STOP_S, release: Callable[[], None] = lambda: None) -> None:
        """Stop after the current step and the started moves, within the timeout; hanging threads are abandoned.

        Args:
            release: ends waits inside a step.
        """
        deadline = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        self._stopping = True
        release()
        self._rouse()
        self._meanwhile.set()
        for thread in (self._thread, self._beside):
            if thread.is_alive():
                thread.join(left_s())
        self.moves.stop(left_s())
        if self._pool is not None:
            self._pool.stop(left_s())

    def post(self, event: e.EngineEvent) -> None:
        """Post an event, handled before the next step. Any thread may call it, but `Add` from one only."""
        if isinstance(event, Add):
            self._posted = _counted(self._posted, event)
        self._events.append(event)
        self._rouse()
        if self._stepping:
            self._meanwhile.set()

    @property
    def unseen(self) -> tuple[int, int]:
        """Prompts that the engine has not handled yet because a step is running, and their tokens."""
        reported, posted = self._reported, self._posted
        return posted[0] - reported[0], posted[1] - reported[1]

    def at_rest(self) -> bool:
        """Whether the engine is idle, with no blocks left to store. May block for one turn."""
        with self._lock:
            snapshot = self.engine.snapshot(self._clock.now())
            return not self._events and self.engine.idle() and not snapshot.storing_blocks

    def progress_age_s(self) -> float:
        """How long there has been work without progress [s]; 0 when idle. Infinite after a crash.

        Three cases count: a turn of the loop that does not end, turns that compute nothing, and a pull that outlasts
        its ticket. A pull that is only slow is a fault of the path, see `KvMoves.pull_age_s`.
        """
        if self._crash is not None:
            return float("inf")
        now, snapshot = self._clock.now(), self.snapshot
        stalled = now - snapshot.last_progress_s if snapshot.has_work else 0.0
        stalled = max(stalled, self.moves.pull_age_s() - self.engine.settings.handoff_lease_s)
        if (overdue_s := self._peers.overdue_s(now)) is not None:
            return max(0.0, stalled, overdue_s)
        if (turn_since := self._turn_since) is not None and now - turn_since > TURN_S * self.time_scale:
            stalled = max(stalled, now - turn_since)
        busy_since = self._busy_since
        if busy_since is None and not self._events:
            return max(0.0, stalled)
        return max(0.0, stalled, now - max(self._last_turn, busy_since or 0.0))

    def step_limit_s(self) -> float:
        """Time the current or next step may take before `progress_age_s` reports a hang [s]."""
        return self._watch.limit_s(self._step_tokens)

    def _run(self, turn: Callable[[], None]) -> None:
        try:
            while not self._stopping and self._crash is None:
                turn()
        except BaseException as error:  # a bug, or a broken group: fail the health check
            if self._stopping and isinstance(error, GroupError):
                return  # a rank that leaves its group
            self._crash = error
            logger.exception("engine thread died; the replica reports unhealthy and will be replaced")

    def _turn(self) -> None:
        """One turn: process new events, run at most one step, deliver output."""
        engine, clock = self.engine, self._clock
        self._wake.clear()
        self._turn_since = clock.now()
        with self._lock:
            reported = self._tell_all()
            answer = self._tell(e.NextStep())
            plan = answer.plan if isinstance(answer, e.Run) else None
            if plan is not None:
                if reported:
                    self._look(clock.now())  # a step may be long: routing needs the current queue
                self._busy_since = self._busy_since or clock.now()
                self._steps(plan)
            self._last_turn = now = clock.now()
            if plan is None or now - self._snapshot_at > SNAPSHOT_PERIOD_S * self.time_scale:
                self._look(now)
            if plan is None:
                self._busy_since = None if engine.idle() else self._busy_since
        if plan is None:
            self._flush()
            self._turn_since = None
            self._sleep(answer.at if isinstance(answer, e.WakeAt) else None)

    def _tell(self, event: e.EngineEvent) -> e.Run | e.Foreseen | e.WakeAt | None:
        """Pass an event to the engine; the lock is held.

        Returns: its command to the loop itself.
        Effects: starts moves, registers handoffs, queues output for delivery.
        """
        answer: e.Run | e.Foreseen | e.WakeAt | None = None
        now = self._clock.now()
        effects = self._on(event, now)
        if self._times is not None:
            self._outbox.extend(self._times.note(event, effects, now, self.busy_s))
        if any(isinstance(effect, e.HandoffReady) or ends(effect) for effect in effects):
            self._look(now)  # before the end is sent, so that a client that receives it finds it counted
        for effect in effects:
            match effect:
                case e.Run() | e.Foreseen() | e.WakeAt():
                    answer = effect
                case e.HandoffReady():
                    self.moves.register(effect)
                case e.PullOrder():
                    self.moves.pull(effect)
                case e.FetchOrder() | e.StoreOrder():
                    assert self._pool is not None, "an engine without a pool orders nothing of it"
                    self._pool.take(effect)
                case _:
                    self._outbox.append(effect)
        return answer

    def _beside_step(self) -> None:
        """Pass events that arrive during a step to the engine; the second thread's loop."""
        self._meanwhile.wait()
        self._meanwhile.clear()
        self._flush()
        with self._lock:
            if self._stepping:
                self._book()
                if self._tell_all():
                    self._tell(e.PullsNow())
                    self._look(self._clock.now())
                self._look_ahead()
        self._flush()

    def _look_ahead(self) -> None:
        """Prepare the step after the running one, if it can be foreseen; the lock is held."""
        if self._preparing is None or self._ahead is not None:
            return
        answer = self._tell(e.Foresee())
        if isinstance(answer, e.Foreseen) and (run := self._preparing.prepare(answer.plan)) is not None:
            self._ahead = answer.plan, run

    def _book(self) -> None:
        """Book the previous step while the current one runs, unless it is booked; the lock is held."""
        result, self._unbooked = self._unbooked, None
        if result is None:
            return
        self._tell(e.StepFollowed(result))
        now = self._clock.now()
        if now - self._snapshot_at > SNAPSHOT_PERIOD_S * self.time_scale:
            self._look(now)

    def _execute(self, run: Callable[[], StepResult]) -> StepResult:
        """Run a step. Effects: releases the lock while it runs, and holds it again on return.

        Raises: as `StepExecutor.execute`.
        """
        self._stepping = True
        if self._events or self._outbox or self._preparing is not None:
            self._meanwhile.set()
        self._lock.release()
        try:
            return run()
        finally:
            self._lock.acquire()
            self._stepping = False

    def _tell_all(self) -> bool:
        """Pass posted events to the engine; the lock is held. Returns: whether there were any."""
        came = bool(self._events)
        while self._events:
            event = self._events.popleft()
            if not isinstance(event, e.Quiet):
                self._ahead = None  # new arrivals must not wait for a step planned before them
            if isinstance(event, Add):
                self._reported = _counted(self._reported, event)
            self._tell(event)
        return came

    def _look(self, now: float) -> None:
        self._snapshot_at = now
        self.snapshot = self.engine.snapshot(now)

    def _sleep(self, wake_at: float | None) -> None:
        if self._events or self._stopping:
            return
        wait = MAX_IDLE_WAIT_S
        if wake_at is not None:
            wait = min(wait, max(0.0, (wake_at - self._clock.now()) / self.time_scale))
        self._peers.rest(wait)
        self._last_turn = self._clock.now()
        self._peers.back()

    def _rouse(self) -> None:
        self._wake.set()
        self._peers.wake()

    def _steps(self, plan: StepPlan) -> None:
        """Run a step, and then those that were prepared during it; the lock is held."""
        result = self._step(plan, partial(self._executor.execute, plan))
        while result is not None:
            self._tell_all()  # first, so that finished copies free their blocks for this step
            # Draft tokens are for the next step, and a plan made before them has none.
            if self._ahead is None or result.has_drafts or self._stopping or self._crash is not None:
                self._tell(e.StepDone(result))
                break
            following, self._ahead = self._ahead, None
            self._unbooked = result
            self._last_turn = self._turn_since = self._clock.now()
            result = self._step(*following)
        self._ahead = None

    def _step(self, plan: StepPlan, run: Callable[[], StepResult]) -> StepResult | None:
        """Run one step. Returns: None if it failed; the failure is passed to the engine.

        Raises: GroupError if the group cannot continue; this engine then also stops, and its streams resume on other
            instances.
        """
        self._step_tokens = plan.num_tokens
        begun = self._clock.now()
        try:
            result = self._execute(run)
        except GroupError:
            raise
        except ServingError as error:
            logger.exception("step %d failed, and so do its %d sequences", plan.step, len(plan.sequences))
            self._book()
            self._tell_all()
            self._tell(e.StepFailed(e.failure(error)))
            return None
        self._book()
        self.busy_s += result.elapsed_s
        taken = self._clock.now() - begun
        self.first_step_s = self.first_step_s or taken / self.time_scale
        self._watch.observe(plan.num_tokens, taken)
        if self._on_step is not None:
            self._on_step(plan.num_tokens, result.elapsed_s)
        return result

    def _flush(self) -> None:
        with self._delivering:
            if news := [self._outbox.popleft() for _ in range(len(self._outbox))]:
                self._send(news)

    def _deliver(self, news: list[LoopEvent]) -> None:
        self._outbox.extend(news)
        self._flush()


def _counted(before: tuple[int, int], order: Add) -> tuple[int, int]:
    spec = order.spec
    return before[0] + 1, before[1] + len(spec.prompt) + len(spec.output)

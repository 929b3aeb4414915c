"""A prefill instance in virtual time: one engine over all of its dies, step by step."""

import math
from collections.abc import Callable

from serving.ids import ReplicaId, SequenceId
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.events import NextStep, Run, StepDone
from serving.instance.core.sequence import SequencePhase
from serving.instance.core.settings import EngineSettings
from serving.values.orders import Add, Order, Release
from serving.values.step_plan import SequenceResult, StepPlan, StepResult
from serving.values.throughput import BusyThroughput
from serving.virtual.instance import InstanceInVirtualTime
from serving.virtual.instance_driver import DriverContext, InstanceDriver, WakeTimer
from serving.virtual.ports import WorkDone

_TOKEN = (0,)
_UNHURT = (SequencePhase.HELD, SequencePhase.CLOSING)
"""Phases of sequences that survive the loss of a die: their KV has copies, or is no longer needed."""


class PrefillInstance(InstanceInVirtualTime):
    """Prefill instance: computes prompts and holds their KV until it is pulled.

    Args:
        npus: NPUs whose dies share sequences and heads, so that all of them compute each step together.
        slowdown: factor on the duration of a step, given its number: stragglers, jitter.
        attention_tokens: of the model; see `PrefillCost`.
    """

    def __init__(
        self,
        name: ReplicaId,
        pool: str,
        npus: int,
        settings: EngineSettings,
        kv_blocks: int,
        around: DriverContext,
        slowdown: Callable[[int], float],
        attention_tokens: float = math.inf,
    ) -> None:
        super().__init__(name, pool, npus)
        self.kv_blocks = kv_blocks
        self._queue = around.queue
        self._times = around.times
        self._slowdown = slowdown
        self._engine = InstanceEngine(settings, kv_blocks)
        self._seat = InstanceDriver(self._engine, name, 0, around, self._kick, self._ended)
        self._inside: set[SequenceId] = set()
        self._timer = WakeTimer(around.queue, self._turn)
        self._plan: StepPlan | None = None
        self._kicked = False
        self._speed = BusyThroughput()
        self._attention_tokens = attention_tokens
        self._ready_s = 0.0
        """End of the running step or of the stall, whichever is later [s]."""
        self._step = (0.0, 0.0, 0, 0.0, 0.0)
        """Start and duration of the running step [s], its tokens, the tokens that they attend to, and the busy time of
        the instance before it [s]."""

    # ---- orders ----------------------------------------------------------------------------------------------------

    def take(self, order: Order) -> None:
        """Execute a command of a gateway. A prefill instance refuses handoffs (`Adopt`)."""
        match order:
            case Add(spec=spec):
                self._inside.add(spec.sequence_id)
            case Release(ticket_id=ticket_id):
                self._ended(SequenceId(ticket_id.rpartition("!")[0]))
        self._seat.take(order)

    def drain(self) -> None:
        """Accept no new sequences."""
        self._seat.drain()

    def move_out(self) -> None:
        """Hold all sequences for other instances to continue."""
        self._seat.move_out()

    def at_rest(self) -> bool:
        """Whether the engine holds nothing; see `InstanceDriver.at_rest`."""
        return self._seat.at_rest()

    def die(self) -> None:
        """Lose all sequences."""
        self.alive = False
        self._seat.dead = True
        self._inside.clear()

    def stall(self, seconds: float) -> None:
        """Stall for some time [s], from now or from the end of the running step."""
        self._ready_s = max(self._ready_s, self._queue.now) + seconds

    def lose_die(self, die: int, share: float) -> tuple[int, int]:
        """Lose the KV of a share of the sequences, which start again. Sequences held for decode survive.

        Returns: sequences lost, and tokens that must be recomputed.
        """
        inside = [key for key, one in self._engine.sequences.items() if one.phase not in _UNHURT]
        lost = inside[: math.ceil(len(inside) * share)]
        return len(lost), sum(self._seat.lose(sequence_id) for sequence_id in lost)

    # ---- state -----------------------------------------------------------------------------------------------------

    @property
    def sequences(self) -> int:
        """Number of sequences on the instance, including held ones."""
        return len(self._inside)

    def inside(self) -> list[SequenceId]:
        """Sequences on the instance, including held ones."""
        return list(self._inside)

    def status(self) -> tuple[int, int, int]:
        """Tokens to be computed, sequences waiting or running, free KV blocks."""
        scheduler = self._engine.scheduler
        inside = len(scheduler.running) + len(scheduler.waiting)
        return scheduler.queued_tokens(), inside, scheduler.blocks.pool.num_free

    def bounds(self) -> tuple[int, int]:
        """Most sequences and most step tokens that run at once."""
        settings = self._engine.settings
        return settings.max_sequences, settings.max_step_tokens

    def tokens_per_s(self) -> float:
        """Tokens recently computed per second of step time; 0 = not known."""
        return self._speed.tokens_per_s

    def waiting(self) -> int:
        """Sequences without blocks."""
        return len(self._engine.scheduler.waiting)

    def kv_used(self) -> int:
        """Blocks in use."""
        return self._engine.scheduler.blocks.pool.num_used

    def done(self) -> WorkDone:
        """Work done so far."""
        meter = self.meter
        if self._plan is None:
            return WorkDone(meter.busy_s, meter.prompt_tokens, meter.forward_tokens, meter.attended_tokens)
        begun_s, duration, tokens, attended, busy_s = self._step
        passed_s = self._queue.now - begun_s
        part = passed_s / duration if duration else 1.0
        left = tokens - int(tokens * part)
        return WorkDone(
            busy_s + passed_s,
            meter.prompt_tokens - left,
            meter.forward_tokens - left,
            meter.attended_tokens - attended * (1.0 - part),
        )

    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._engine.scheduler.preemptions

    def check(self) -> None:
        """Check that the engine's ledgers balance.

        Raises: LedgerError if they do not.
        """
        self._engine.check()

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _ended(self, sequence_id: SequenceId) -> None:
        self._inside.discard(sequence_id)
        if self.on_empty is not None and not self._inside:
            self.on_empty()

    def _kick(self, _seat: InstanceDriver) -> None:
        """Start the next step after all other events of this moment, unless a step runs or there are no sequences."""
        scheduler = self._engine.scheduler
        if self._plan is None and not self._kicked and (scheduler.waiting.items or scheduler.running.items):
            self._kicked = True
            self._queue.at(self._queue.now, self._kicked_now)

    def _kicked_now(self, _: object) -> None:
        self._kicked = False
        self._turn()

    def _turn(self) -> None:
        if self._plan is not None or not self.alive:
            return
        answer = self._seat.tell(NextStep())
        if not isinstance(answer, Run):
            self._timer.set(answer.at if answer is not None else None)
            return
        self._plan = plan = answer.plan
        seconds, tokens, attended = self._price(plan)
        now = self._queue.now
        begins = max(now, self._ready_s)
        duration = begins - now + seconds
        self._ready_s = now + duration
        if tokens:
            self._speed.observe(int(tokens + attended / self._attention_tokens), duration)
        self._step = now, duration, int(tokens), attended, self.meter.busy_s
        self.meter.step(duration, len(plan.sequences), int(tokens), attended, self.kv_used() / self.kv_blocks)
        self._queue.at(now + duration, self._step_done, duration)

    def _price(self, plan: StepPlan) -> tuple[float, float, float]:
        """Duration of a step [s], its prompt tokens, and the tokens that they attend to in total."""
        tokens = attended = largest = 0.0
        for step in plan.sequences:
            fed = len(step.tokens)
            tokens += fed
            largest = max(largest, fed)
            attended += fed * (step.start + 0.5 * fed)
        return self._times.prefill(tokens, attended, largest) * self._slowdown(plan.step), tokens, attended

    def _results(self, plan: StepPlan) -> list[SequenceResult]:
        return [SequenceResult(step.sequence_id, _TOKEN if step.sample is not None else ()) for step in plan.sequences]

    def _step_done(self, duration: float) -> None:
        plan = self._plan
        if not self.alive or plan is None:
            return
        self._plan = None
        results = self._results(plan)
        self._seat.tell(StepDone(StepResult(plan.step, tuple(results), duration)))
        self._turn()

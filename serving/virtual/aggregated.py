"""An aggregated instance in virtual time: one engine over all of its dies, prompt chunks next to running decodes.

As live: the same engine, which puts chunks and decodes into one step; the same seats, of decoding sequences on dies;
the same price of a step, `StepTimes`. A prompt is computed by all dies together, a sequence decodes on one of them.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from hardware.cost.cost_model import CostModel
from serving.config.serve import ServeConfig
from serving.ids import ReplicaId, SequenceId
from serving.instance.core.placeholder import rate_of
from serving.instance.core.sequence import SequencePhase
from serving.instance.core.settings import EngineRole, EngineSettings, engine_settings
from serving.instance.executors.simulated_answers import SimulatedAnswer, SimulatedAnswers
from serving.instance.executors.simulated_executor import DecodeDies, StepTimes
from serving.values.orders import Adopt, Order
from serving.values.step_plan import SampleOrder, SequenceResult, SequenceStep, StepPlan
from serving.virtual.capacity import kv_blocks
from serving.virtual.instance_driver import DriverContext
from serving.virtual.ports import WorkDone
from serving.virtual.prefill import PrefillInstance
from serving.virtual.times import Slowdown


class AggregatedInstance(PrefillInstance):
    """Computes prompts and generates.

    Args:
        settings, kv_blocks: of the whole instance.
        dies: over which sequences decode; groups of them where they share their sequences.
        steps: durations of its steps.
        drafts, acceptance: of MTP.
    """

    def __init__(
        self,
        name: ReplicaId,
        npus: int,
        dies: int,
        settings: EngineSettings,
        kv_blocks: int,
        around: DriverContext,
        slowdown: Callable[[int], float],
        steps: StepTimes,
        drafts: int,
        acceptance: float | tuple[float, ...],
        attention_tokens: float = math.inf,
    ) -> None:
        super().__init__(name, "aggregated", npus, settings, kv_blocks, around, slowdown, attention_tokens)
        self._steps = steps
        self._drafts, self._acceptance = drafts, acceptance
        self._dies = DecodeDies(dies, settings.max_sequences, settings.block_tokens)
        self._answers = SimulatedAnswers((0,), settings.max_model_len, 1, drafts, acceptance)
        self._counts: list[int] = []
        """Tokens that each sequence of the running step gets."""
        self._decoding = 0

    def take(self, order: Order) -> None:
        """See `Instance`. A handoff is from a draining instance."""
        if isinstance(order, Adopt):
            self._inside.add(order.spec.sequence_id)
        super().take(order)

    def repeat(self, steps: float) -> None:
        """Repeat the work of the running step `steps` times."""
        self.stall(steps * self.step_s)

    def lose_die(self, die: int, share: float) -> tuple[int, int]:
        """Lose a share of a die's KV: of the sequences that decode there, and of the prompts that all dies compute.

        Returns: sequences hit, and tokens that must be computed again.
        """
        inside = [one for one in self._engine.scheduler.running.items if self._touches(one.sequence_id, die)]
        lost = [one.sequence_id for one in inside if one.phase is not SequencePhase.CLOSING]
        lost = lost[: math.ceil(len(lost) * share)]
        return len(lost), sum([self._seat.lose(sequence_id) for sequence_id in lost])

    def _touches(self, sequence_id: SequenceId, die: int) -> bool:
        seat = self._dies.find(sequence_id)
        return seat is None or seat.die == die

    @property
    def batch(self) -> int:
        """Sequences that the running step decodes."""
        return self._decoding if self._plan is not None else 0

    @property
    def step_s(self) -> float:
        """Duration of the running step [s]; 0 if there is none."""
        return self._step[1] if self._plan is not None else 0.0

    def done(self) -> WorkDone:
        """Work done so far."""
        done = super().done()
        if self._plan is None:
            return done
        begun_s, duration = self._step[:2]
        left = 1.0 - (self._queue.now - begun_s) / duration if duration else 0.0
        return done._replace(forward_tokens=done.forward_tokens - int(left * self._fed))

    @property
    def _fed(self) -> int:
        """Tokens that the running step computes for decoding sequences, draft tokens included."""
        return self._decoding * (1 + self._drafts)

    def _price(self, plan: StepPlan) -> tuple[float, float, float]:
        dies, tokens, attended, largest = self._dies, 0, 0.0, 0
        dies.begin()
        counts = []
        for step in plan.sequences:
            fed, order = len(step.tokens), step.sample
            if fed == 1 and order is not None and order.output:
                counts.append(self._decode(step, order))
                continue
            counts.append(0 if order is None else 1)
            tokens += fed
            largest = max(largest, fed)
            attended += fed * (step.start + 0.5 * fed)
        load = dies.end()
        self._counts, self._decoding = counts, load.sequences
        self.meter.forward_tokens += self._fed
        return self._steps.step_s(plan.step, load, tokens, attended, largest), float(tokens), attended

    def _decode(self, step: SequenceStep, order: SampleOrder) -> int:
        """A sequence decodes in this step. Returns: tokens that it gets."""
        seat = self._dies.find(step.sequence_id)
        if seat is None:
            sampling = order.sampling
            extra = rate_of(sampling.seed, sampling.max_tokens, self._drafts, self._acceptance)
            answer = SimulatedAnswer(sampling.max_tokens, None, extra)
            seat = self._dies.place(step.sequence_id, len(order.prompt) + sampling.max_tokens, answer)
        self._dies.take_part(seat, step.start + 1)
        return self._answers.decoded(seat.answer, order)

    def _results(self, plan: StepPlan) -> list[SequenceResult]:
        self.meter.output_tokens += sum(self._counts)
        return [
            SequenceResult(step.sequence_id, (0,) * count)
            for step, count in zip(plan.sequences, self._counts, strict=True)
        ]


def aggregated_instance(
    config: ServeConfig, cost: CostModel, name: ReplicaId, model_len: int, around: DriverContext, slowdown: Slowdown
) -> AggregatedInstance:
    """The aggregated instance that `[aggregated]` configures.

    Args:
        model_len: longest prompt plus output of the model [tokens].
    Raises: SpecError if the model does not fit.
    """
    pool, simulation = config.aggregated, config.simulation
    dies, drafts = pool.dies_per_instance, simulation.drafts
    blocks = kv_blocks(config, cost, "aggregated", dies)
    settings = engine_settings(config, "aggregated", pool, model_len, blocks, draft_tokens=drafts)
    settings = replace(settings, cache_decoded=not config.model.reasoning)
    steps = StepTimes(
        cost, EngineRole.AGGREGATED, dies, drafts, prefill_dies=dies,
        perfect_balance=simulation.expert_balance == "perfect", slowdown=slowdown,
    )  # fmt: skip
    return AggregatedInstance(
        name, pool.npus_per_instance, cost.decode.parallelism.groups(dies), settings, blocks, around, slowdown, steps,
        drafts, simulation.acceptance, cost.shape.attention_tokens,
    )  # fmt: skip

"""Utilization of instances: the part of their capacity that they used under load.

    time under load   until the last request arrives; the tail in which the remaining requests drain does not count
    work              time that the tokens take at the instance's best rate; a small step counts less than its duration

If all requests arrive within the first tenth of a run, the whole run is under load.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hardware.cost import CostModel, PrefillLoad
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.trust import both_trusts, decode_trust, engine_text_of, prefill_trust
from serving.config.engine import PoolConfig
from serving.config.serve import ServeConfig
from serving.ids import ReplicaId
from serving.values.pool_kinds import POOL_KINDS, kinds_of
from serving.virtual.ports import WorkDone
from serving.virtual.result import ACCURACY, ENGINE, InstanceTotals, RequestColumns, SimulatedPoint

_NOTHING = WorkDone(0.0, 0, 0)
_BURST = 0.1
_PARTS = (1.0, 0.25)
_CHUNKS = (4096.0, 16384.0)
"""Step sizes that are tried for the best rate of a prefill instance: parts of its limit, and tokens."""


class LoadMarks:
    """Work of stopped instances, and of all instances at the arrival of the last request."""

    __slots__ = ("_gone", "_marks", "end_s")

    def __init__(self) -> None:
        self.end_s = -1.0
        """When the last request arrived [s]; below 0 until then."""
        self._gone: dict[ReplicaId, WorkDone] = {}
        self._marks: dict[ReplicaId, WorkDone] = {}

    def gone(self, name: ReplicaId, done: WorkDone) -> None:
        """Record the work of an instance that is being stopped."""
        self._gone[name] = done

    def over(self, now: float, done: dict[ReplicaId, WorkDone]) -> None:
        """Record the arrival of the last request, and the work of all instances that are up."""
        self.end_s = now
        self._marks = self._gone | done

    def whole(self, done: dict[ReplicaId, WorkDone]) -> dict[ReplicaId, WorkDone]:
        """Work of every instance over the whole run.

        Args:
            done: work of the instances that are up at the end.
        """
        return self._gone | done

    def loaded(self, name: ReplicaId) -> WorkDone:
        """Work of an instance until the last request arrived; zero if it started later."""
        return self._marks.get(name, _NOTHING)


@dataclass(frozen=True, slots=True)
class BestRates:
    """Best rates of a prefill and a decode instance of the configured sizes.

    Attributes:
        decode_token_s: time per generated token of an instance with a full batch [s].
        tokens_per_step: tokens per sequence and step.
    """

    cost: CostModel
    config: ServeConfig
    decode_token_s: float
    tokens_per_step: float

    def work_s(self, pool: str, done: WorkDone) -> float:
        """Time that the work takes at the best rate [s]."""
        prompt = self._prefill_s(done.prompt_tokens, done.attended_tokens)
        if not POOL_KINDS[pool].decodes:
            return prompt
        fed = (done.forward_tokens - done.prompt_tokens) / (1 + self.config.simulation.drafts)
        return prompt + fed * self.tokens_per_step * self.decode_token_s

    def _prefill_s(self, tokens: int, attended: float) -> float:
        if not tokens:
            return 0.0
        pool, balance = prompts_pool(self.config), self.config.simulation.prefill_imbalance
        sizes = {pool.max_step_tokens * part for part in _PARTS}
        sizes |= {float(min(size, pool.max_step_tokens)) for size in _CHUNKS}
        loads = [PrefillLoad(size, size * attended / tokens, pool.dies_per_instance, balance) for size in sorted(sizes)]
        return tokens * min(self.cost.prefill_step_s(one) / one.tokens for one in loads)


def prompts_pool(config: ServeConfig) -> PoolConfig:
    """The pool that computes prompts."""
    return next(config.pools[kind.name] for kind in kinds_of(config.serving.mode) if kind.prefills)


def answers_pool(config: ServeConfig) -> PoolConfig:
    """The pool that generates."""
    return next(config.pools[kind.name] for kind in kinds_of(config.serving.mode) if kind.decodes)


def best_rates(cost: CostModel, config: ServeConfig, rows: RequestColumns) -> BestRates:
    """Best rates at the observed context lengths, with the largest batch within the `[slo]` TPOT."""
    prompt, output = np.asarray(rows.prompt_tokens), np.asarray(rows.output_tokens)
    generated = float(output.sum())
    context = float(((prompt + output / 2) * output).sum()) / generated if generated else 1.0
    pool, simulation = answers_pool(config), config.simulation
    npus = pool.npus_per_instance
    limit = pool.max_sequences // npus
    rate = decode_tokens_per_s(cost, config, context, npus, pool.dies_per_instance, limit, config.slo.tpot_s)
    return BestRates(cost, config, 1 / rate, mtp_tokens_per_step(simulation.drafts, simulation.acceptance))


def decode_tokens_per_s(
    cost: CostModel, config: ServeConfig, context: float, npus: int, dies: int, limit: int, tpot_s: float
) -> float:
    """Output tokens per second of one decode instance with the largest batch within `tpot_s`, by the cost model.

    Args:
        context: of each sequence [tokens]. limit: most sequences per NPU.
    """
    drafts, acceptance = config.simulation.drafts, config.simulation.acceptance
    batch = cost.max_batch(tpot_s, context, dies=dies, drafts=drafts, acceptance=acceptance)
    batch = max(1, min(batch, limit))
    return npus * batch / float(cost.tpot_s(batch, context, dies=dies, drafts=drafts, acceptance=acceptance))


def with_work(
    instances: Iterable[InstanceTotals],
    marks: LoadMarks,
    done: dict[ReplicaId, WorkDone],
    end_s: float,
    rates: BestRates,
) -> tuple[list[InstanceTotals], float]:
    """Add the time and work under load to the totals of instances.

    Args:
        done: work of the instances that are up at the end. end_s: of the run [s].
    Returns: the instances, and the time under load [s].
    """
    cut = _BURST * end_s <= marks.end_s
    loaded_s = marks.end_s if cut else end_s
    whole = marks.whole(done)
    found = []
    for one in instances:
        work = marks.loaded(ReplicaId(one.name)) if cut else whole[ReplicaId(one.name)]
        stopped_s = end_s if math.isnan(one.stopped_s) else one.stopped_s
        found.append(
            replace(
                one,
                load_s=max(0.0, min(loaded_s, stopped_s) - one.started_s),
                load_busy_s=work.busy_s,
                work_s=min(rates.work_s(one.pool, work), work.busy_s),
            )
        )
    return found, loaded_s


# Expected accuracy of the times of a simulation, at its typical steps.

MIXED = "; steps that do both: nobody has published one, they are derived"


def accuracy(
    cost: CostModel,
    config: ServeConfig,
    rows: RequestColumns,
    points: Sequence[SimulatedPoint],
    instances: Sequence[InstanceTotals],
) -> dict[str, str]:
    """The engine that the times hold for, and their accuracy at the median decode batch and the mean prefill step.

    Reads files of the device and of the engine.
    """
    found = {ENGINE: engine_text_of(cost)}
    batches = sorted(
        point.decode_batch / point.decode_npus for point in points if point.decode_batch * point.decode_npus
    )
    steps = sum(one.steps for one in instances if one.pool != "decode" and one.prompt_tokens)
    if not len(rows) or not batches or not steps:
        return found
    prompts = sum(rows.prompt_tokens)
    context = (prompts + sum(rows.output_tokens) / 2) / len(rows)
    decode = decode_trust(
        cost, float(f"{batches[len(batches) // 2]:.3g}"), round(context), config.simulation.drafts,
        dies=answers_pool(config).dies_per_instance,
    )  # fmt: skip
    dies = prompts_pool(config).dies_per_instance
    chunk = sum(one.prompt_tokens for one in instances if one.pool != "decode") / steps / dies
    if config.one_pool:  # most steps only decode: a chunk is a prompt, or what a step takes
        chunk = min(prompts_pool(config).max_step_tokens, sum(rows.prompt_tokens) / len(rows)) / dies
    cached = round(min(0.999, sum(rows.cached_tokens) / max(1, prompts)), 3)
    prefill = prefill_trust(cost, round(chunk), round(prompts / len(rows)), dies=dies, reuse=cached)
    trust = both_trusts(decode, prefill)
    if config.one_pool:
        trust += MIXED
    return found | {ACCURACY: trust}

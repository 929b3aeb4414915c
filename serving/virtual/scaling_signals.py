"""An autoscaler's signals in virtual time: the same values as live, read from instances and books."""

import math
from bisect import bisect_left

from hardware.cost.cost_model import mtp_tokens_per_step
from serving.config.serve import ServeConfig
from serving.ids import ReplicaId
from serving.scaling.core.decode_ability import CROWD_SPREAD, TPOT_SPREAD, DecodeAbility, Expected
from serving.values.signals import CacheSignals, PoolSignals, ScalingSignals
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_sizes import MemorySizes
from serving.virtual.ports import StepDurations
from serving.virtual.supernode import Supernode

TYPICAL_PROMPT = 4096.0
"""Tokens of the prompt for which capacities are stated; the cost model's rows are of that length."""
FULLEST = 1.2
"""Sequences that the fullest die of a decode instance has above the mean, in roots of the mean. Measured with
the ServeGen R1 day."""


class SignalReader:
    """Reads one supernode. What decode can do is learned as live, beginning with what the cost model says."""

    def __init__(self, node: Supernode) -> None:
        self._node = node
        config, times = node.config, node.times
        self._prompt_tokens_per_s = prompt_rate(config, times)
        self._decode = DecodeAbility(expected_decode(config, times))
        simulation = node.config.simulation
        self._tokens_per_step = mtp_tokens_per_step(simulation.drafts, simulation.acceptance)
        self._stepped: dict[ReplicaId, tuple[int, float]] = {}
        """Steps and time that instances had taken at the last look."""

    def read(self) -> ScalingSignals:
        """Everything as it is now.

        Effects: memory servers do what is due; see also `TrafficTally.traffic`.
        """
        node = self._node
        now, total = node.queue.now, node.placement.total
        budget = min(node.config.autoscaler.npu_budget or total, total)
        free = node.sizes.free_npus
        taken = total - free
        self._see_decode()
        book = node.book
        return ScalingSignals(
            now=now,
            pools=tuple(self._pool(pool) for pool in node.config.pools),
            cache=self._cache(),
            traffic=book.tally.traffic(book.rows, book.tokens_out, [one.waiting() for one in node.gateways], now),
            npus_free=max(0, min(free, budget - taken)),
            npus_total=budget,
            start_s=node.sizes.start_s,
        )

    def _see_decode(self) -> None:
        """Learn what decode can do from the steps since the last look."""
        node, before = self._node, self._stepped
        self._stepped = {one.name: (one.meter.steps, one.meter.busy_s) for one in node.decodes}
        for one in node.decodes:
            steps, busy_s = before.get(one.name, (one.meter.steps, 0.0))
            if one.meter.steps > steps and one.batch:
                seconds = one.meter.busy_s - busy_s
                token_s = seconds / (one.meter.steps - steps) / self._tokens_per_step
                self._decode.see(one.batch, token_s, seconds)

    def _pool(self, pool: str) -> PoolSignals:
        node, sizes = self._node, self._node.sizes
        there = node.instances(pool)
        up = [one for one in there if not one.draining]
        section = node.config.pools[pool]
        low, high = node.config.autoscaler.bounds(pool)
        return PoolSignals(
            pool=pool,
            target=sizes.targets[pool],
            running=len(up),
            starting=max(0, sizes.targets[pool] - len(up)),
            draining=len(there) - len(up),
            npus_per_instance=section.npus_per_instance,
            queued_tokens=sum(one.status()[0] for one in up),
            waiting=sum(one.waiting() for one in up),
            sequences=sum(one.sequences for one in there),
            kv_blocks_used=sum(one.kv_used() for one in there),
            kv_blocks_total=sum(one.kv_blocks for one in up),
            tokens_per_s=self._prompt_tokens_per_s if pool == "prefill" else 0.0,
            max_sequences=self._most(TPOT_SPREAD) if pool == "decode" else 0.0,
            low=low,
            high=high,
            crowd=self._most(CROWD_SPREAD) if pool == "decode" else 0.0,
            seats=section.max_sequences,
        )

    def _most(self, spread: float) -> float:
        config = self._node.config
        return self._decode.most(config.slo.tpot_s, config.decode.max_sequences, spread)

    def _cache(self) -> CacheSignals | None:
        node = self._node
        pool, sizes = node.pool, node.memory_sizes
        if pool is None or sizes is None:
            return None
        pool.tick(node.queue.now)
        return _cache_signals(pool, sizes, node)


def _cache_signals(pool: VirtualPool, sizes: MemorySizes, node: Supernode) -> CacheSignals:
    used, total = pool.memory_bytes
    low, high = node.config.autoscaler.bounds("kvcache")
    running, tokens = len(pool.active()), node.config.engine.block_tokens
    return CacheSignals(
        target=sizes.target,
        running=running,
        starting=max(0, sizes.target - running),
        draining=pool.draining,
        bytes_used=used,
        bytes_total=total,
        looked_up_tokens=node.movers.asked_blocks * tokens,
        hit_tokens=node.movers.found_blocks * tokens,
        evicted_bytes=pool.counters.evicted * node.block_bytes,
        low=low,
        high=min(high, sizes.most),
    )


def prompt_rate(config: ServeConfig, times: StepDurations) -> float:
    """Prompt tokens that one prefill instance computes per second, by the cost model."""
    tokens = float(config.prefill.max_step_tokens)
    return tokens / times.prefill(tokens, tokens * TYPICAL_PROMPT / 2)


def expected_decode(config: ServeConfig, times: StepDurations) -> Expected:
    """Load that one decode instance can carry by the cost model."""
    most = _sequences_in_time(config, times)
    slope_s = (_token_s(config, times, most) - _token_s(config, times, most / 2)) / (most / 2)
    return Expected(most, slope_s)


def _sequences_in_time(config: ServeConfig, times: StepDurations) -> int:
    """Most sequences of an instance at which tokens still come often enough."""
    limit_s = config.slo.tpot_s / TPOT_SPREAD

    def late(sequences: int) -> bool:
        return _token_s(config, times, sequences) > limit_s

    return max(1, bisect_left(range(config.decode.max_sequences), True, key=lambda count: late(count + 1)))


def _token_s(config: ServeConfig, times: StepDurations, sequences: float) -> float:
    """Mean time per token with so many sequences in an instance, by its fullest die [s]."""
    simulation = config.simulation
    mean = sequences / config.decode.dies_per_instance
    fullest = mean + FULLEST * math.sqrt(mean)
    step_s = times.decode(fullest, fullest * TYPICAL_PROMPT, mean)
    return step_s / mtp_tokens_per_step(simulation.drafts, simulation.acceptance)

"""What an autoscaler is told of a supernode in virtual time: the same values as live, read from instances and books."""

import math
from bisect import bisect_left

from hardware.cost.cost_model import mtp_tokens_per_step
from serving.config.serve import ServeConfig
from serving.policy.scaling.signals import CacheSignals, PoolSignals, ScalingSignals
from serving.sim.core.memory_pool import VirtualPool
from serving.sim.core.memory_sizes import MemorySizes
from serving.sim.core.ports import StepTimes
from serving.sim.core.supernode import Supernode

TYPICAL_PROMPT = 4096.0
"""Tokens of the prompt for which capacities are stated; the cost model's rows are of that length."""
TPOT_SPREAD = 1.1
"""The slowest of a hundred requests takes so much longer per token than the mean: fewer of its drafts are accepted, and
its batch was fuller. Measured in virtual time with the ServeGen R1 day: 1.07 to 1.10."""
FULLEST = 1.2
"""Sequences that the fullest die of a decode instance has above the mean, in roots of the mean. Measured likewise."""


class SignalReader:
    """Reads one supernode.

    Args:
        capacity: work that one instance of a pool can do within the promised times: prompt tokens per second, sequences
            at a time.
    """

    def __init__(self, node: Supernode, capacity: dict[str, float]) -> None:
        self._node = node
        self._capacity = capacity

    def read(self) -> ScalingSignals:
        """Everything as it is now.

        Effects: memory servers do what is due; see also `TrafficTally.traffic`.
        """
        node = self._node
        now, total = node.queue.now, node.placement.total
        budget = min(node.config.autoscaler.npu_budget or total, total)
        free = node.sizes.free_npus
        taken = total - free
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

    def _pool(self, pool: str) -> PoolSignals:
        node, sizes = self._node, self._node.sizes
        there = node.instances(pool)
        up = [one for one in there if not one.draining]
        low, high = node.config.autoscaler.bounds(pool)
        return PoolSignals(
            pool=pool,
            target=sizes.targets[pool],
            running=len(up),
            starting=max(0, sizes.targets[pool] - len(up)),
            draining=len(there) - len(up),
            npus_per_instance=node.config.pools[pool].npus_per_instance,
            queued_tokens=sum(one.status()[0] for one in up),
            waiting=sum(one.waiting() for one in up),
            sequences=sum(one.sequences for one in there),
            kv_blocks_used=sum(one.kv_used() for one in there),
            kv_blocks_total=sum(one.kv_blocks for one in up),
            tokens_per_s=self._capacity["tokens_per_s"] if pool == "prefill" else 0.0,
            max_sequences=self._capacity["sequences"] if pool == "decode" else 0.0,
            low=low,
            high=high,
        )

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


def capacities(config: ServeConfig, times: StepTimes) -> dict[str, float]:
    """Work that one instance of each pool can do within the promised times, by the cost model.

    Returns: `tokens_per_s` of a prefill instance, `sequences` that a decode instance can run at once.
    """
    tokens = float(config.prefill.max_step_tokens)
    step = times.prefill(tokens, tokens * TYPICAL_PROMPT / 2)
    return {"tokens_per_s": tokens / step, "sequences": float(_sequences_in_time(config, times))}


def _sequences_in_time(config: ServeConfig, times: StepTimes) -> int:
    """Most sequences at which an iteration, by its fullest die, still gives tokens often enough."""
    simulation, dies = config.simulation, config.decode.dies_per_instance
    limit_s = config.slo.tpot_s / TPOT_SPREAD * mtp_tokens_per_step(simulation.drafts, simulation.acceptance)

    def in_time(sequences: int) -> bool:
        mean = sequences / dies
        fullest = mean + FULLEST * math.sqrt(mean)
        return times.decode(fullest, fullest * TYPICAL_PROMPT, mean) <= limit_s

    return max(1, bisect_left(range(config.decode.max_sequences), True, key=lambda count: not in_time(count + 1)))

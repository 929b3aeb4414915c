"""An autoscaler's signals in virtual time: the same values as live, read from instances and books."""

import math
from bisect import bisect_left

from msgspec.structs import replace

from hardware.cost.cost_model import mtp_tokens_per_step
from serving.config.cluster import DIES_PER_NPU
from serving.config.serve import ServeConfig
from serving.ids import ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.scaling.core.decode_ability import CROWD_SPREAD, TPOT_SPREAD, DecodeAbility, Expected
from serving.scaling.core.decode_parts import in_parts
from serving.scaling.core.measure import Abilities
from serving.values.signals import CacheSignals, PoolSignals, ScalingSignals
from serving.virtual.aggregated import AggregatedInstance
from serving.virtual.decode_sizes import DecodeSizes
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_sizes import MemorySizes
from serving.virtual.ports import StepDurations
from serving.virtual.supernode import Supernode
from serving.virtual.work_done import answers_pool, prompts_pool

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
        self._expected = {answers_pool(config).npus_per_instance: self._decode.expected.most}  # type: ignore[union-attr] # given
        """Sequences of one decode instance within the promise, by its NPUs, as the cost model says."""
        self._abilities = Abilities()
        """Sequences that aggregated instances decode within the SLO, measured as live: a step does both."""
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
            start_s=max(node.sizes.start_s(pool) for pool in node.config.pools),
        )

    def _see_decode(self) -> None:
        """Learn what decode can do from the steps since the last look."""
        node, before = self._node, self._stepped
        if node.aggregated:
            self._abilities.observe(
                ClusterSnapshot(node.queue.now, members={one.name: _member(one) for one in node.aggregated})
            )
        self._stepped = {one.name: (one.meter.steps, one.meter.busy_s) for one in node.decodes}
        for one in node.decodes:
            steps, busy_s = before.get(one.name, (one.meter.steps, 0.0))
            if one.meter.steps > steps and one.batch:
                seconds = one.meter.busy_s - busy_s
                token_s = seconds / (one.meter.steps - steps) / self._tokens_per_step
                self._decode.see(one.batch / self._share(one.npus), token_s, seconds)

    def _share(self, npus: int) -> float:
        """Ability of a decode instance of so many NPUs, in that of one of the configured size."""
        config, expected = self._node.config, self._expected
        if npus not in expected:
            expected[npus] = expected_decode(config, self._node.times, npus).most
        return expected[npus] / expected[answers_pool(config).npus_per_instance]

    def _pool(self, pool: str) -> PoolSignals:
        if pool == "decode" and self._node.parts is not None:
            return self._parts(self._node.parts)
        return self._instances(pool)

    def _parts(self, sizes: DecodeSizes) -> PoolSignals:
        """Decode instances that change their size, as so many parts of theirs."""
        whole, target, bounds = self._instances("decode"), sizes.rules.target, sizes.bounds
        low, high = bounds
        count = max(1, whole.running)
        abilities = tuple(whole.max_sequences * count * self._part(sizes, parts / count) for parts in range(high + 1))
        now = min(max(target, low), high)
        crowded = whole.crowd / whole.max_sequences if whole.max_sequences > 0 else 0.0
        return replace(
            in_parts(whole, whole.npus_per_instance // sizes.step, target, sizes.instances(), sizes.step, bounds),
            max_sequences=abilities[now] / now,
            crowd=crowded * abilities[now] / now,
            start_s=sizes.start_s(),
            abilities=abilities,
        )

    def _part(self, sizes: DecodeSizes, parts: float) -> float:
        """Ability of an instance of so many parts, in that of one of the configured size; in proportion below the
        fewest, and between whole parts.
        """
        fewest = sizes.rules.fewest
        if parts < fewest:
            return parts / fewest * self._share(fewest * sizes.step)
        below = math.floor(parts)
        here, next_ = self._share(below * sizes.step), self._share((below + 1) * sizes.step)
        return here + (parts - below) * (next_ - here)

    def _instances(self, pool: str) -> PoolSignals:
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
            tokens_per_s=0.0 if pool == "decode" else self._prompt_tokens_per_s,
            max_sequences=self._most(pool, TPOT_SPREAD),
            low=low,
            high=high,
            crowd=self._most(pool, CROWD_SPREAD),
            seats=section.max_sequences,
            start_s=sizes.start_s(pool),
        )

    def _most(self, pool: str, spread: float) -> float:
        config = self._node.config
        if pool == "prefill":
            return 0.0
        if pool == "aggregated":
            return self._abilities.most_sequences(pool, config.slo.tpot_s, config.aggregated.max_sequences, spread)
        return self._decode.most(config.slo.tpot_s, answers_pool(config).max_sequences, spread)

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


def _member(one: AggregatedInstance) -> SeenMember:
    """An aggregated instance as it would report on itself live."""
    done = one.done()
    facts = {
        "prompt_tokens_total": done.prompt_tokens,
        "generated_tokens_total": one.meter.output_tokens,
        "busy_s": done.busy_s,
        "running": one.sequences - one.waiting(),
    }
    return SeenMember(one.name, one.pool, "1", facts)


def prompt_rate(config: ServeConfig, times: StepDurations) -> float:
    """Prompt tokens that one prefill instance computes per second, by the cost model."""
    tokens = float(prompts_pool(config).max_step_tokens)
    return tokens / times.prefill(tokens, tokens * TYPICAL_PROMPT / 2)


def expected_decode(config: ServeConfig, times: StepDurations, npus: int = 0) -> Expected:
    """Load that one decode instance can carry by the cost model.

    Args:
        npus: of the instance; 0 = as configured.
    """
    pool = answers_pool(config)
    dies = (npus or pool.npus_per_instance) * DIES_PER_NPU
    groups = (dies - config.simulation.expert_dies) // config.simulation.decode_attention_tp
    seats = pool.max_sequences * dies // pool.dies_per_instance
    most = _sequences_in_time(config, times, groups, seats)
    slope_s = (_token_s(config, times, most, groups) - _token_s(config, times, most / 2, groups)) / (most / 2)
    return Expected(most, slope_s)


def _sequences_in_time(config: ServeConfig, times: StepDurations, groups: int, seats: int) -> int:
    """Most sequences of an instance, of at most its seats, at which tokens still come often enough."""
    limit_s = config.slo.tpot_s / TPOT_SPREAD

    def late(sequences: int) -> bool:
        return _token_s(config, times, sequences, groups) > limit_s

    return max(1, bisect_left(range(seats), True, key=lambda count: late(count + 1)))


def _token_s(config: ServeConfig, times: StepDurations, sequences: float, groups: int) -> float:
    """Mean time per token with so many sequences in an instance, by its fullest die or group [s]."""
    simulation = config.simulation
    mean = sequences / groups
    fullest = mean + FULLEST * math.sqrt(mean)
    step_s = times.decode(fullest, fullest * TYPICAL_PROMPT, mean, groups)
    return step_s / mtp_tokens_per_step(simulation.drafts, simulation.acceptance)

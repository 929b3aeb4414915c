"""A scaler's input at each tick: pools, traffic, SLOs met and missed, free hardware.

The live driver on Ray and the virtual driver fill in the same values; the scaler keeps the history it needs. Event
counts are totals since the start and never decrease, so a missed tick loses no events: a rate is the difference of two
ticks over the time between them.
"""

from msgspec import Struct


class PoolSignals(Struct, frozen=True, gc=False):
    """One engine pool now.

    Args:
        pool: its name, as in `pool_kinds`.
        target: replicas last requested.
        running: serving and not draining; `starting`: requested and not serving yet; `draining`: still shutting down.
        npus_per_instance: NPUs that one replica takes.
        queued_tokens: prompt tokens waiting to be computed in the pool's instances.
        waiting: sequences queued there.
        sequences: waiting, being pulled or fetched, or running, including those of draining instances, which finish
            there or are resubmitted.
        kv_blocks_used: including draining instances; `kv_blocks_total`: of all running instances.
        tokens_per_s: prompt tokens that one busy instance computes per second; 0 = unknown.
        max_sequences: that one instance can decode concurrently within the TPOT SLO; 0 = unknown.
        low, high: bounds of the target.
        crowd: sequences that it can decode concurrently for a while without missing that SLO, which is a mean over a
            request's life; 0 = unknown. seats: that it can hold, within the SLO or not; 0 = unknown.
        held_until: time until which a manual target holds; 0 = none.
        start_s: from a decision to one more serving replica [s]; 0 = `ScalingSignals.start_s`.
        abilities: sequences that 0, 1, 2, ... replicas decode concurrently within the SLO, where a replica is a part of
            an instance that grows and shrinks: twice the parts do more than twice the work. Empty = in proportion.
    """

    pool: str
    target: int
    running: int
    starting: int
    draining: int
    npus_per_instance: int
    queued_tokens: int
    waiting: int
    sequences: int
    kv_blocks_used: int
    kv_blocks_total: int
    tokens_per_s: float
    max_sequences: float
    low: int
    high: int
    crowd: float = 0.0
    seats: int = 0
    held_until: float = 0.0
    start_s: float = 0.0
    abilities: tuple[float, ...] = ()


class CacheSignals(Struct, frozen=True, gc=False):
    """The KV-cache pool now.

    Args:
        target, running, starting, draining, low, high, held_until: as in `PoolSignals`; a replica is a memory server.
        bytes_used, bytes_total: memory tier of all servers [bytes].
        looked_up_tokens, hit_tokens: prompt tokens queried and found in the pool, in total.
        evicted_bytes: evicted from memory to free space, in total.
    """

    target: int
    running: int
    starting: int
    draining: int
    bytes_used: int
    bytes_total: int
    looked_up_tokens: int
    hit_tokens: int
    evicted_bytes: int
    low: int
    high: int
    held_until: float = 0.0


class Traffic(Struct, frozen=True, gc=False):
    """Traffic of all gateways together: totals, except for the queue.

    Args:
        arrived: requests received; `arrived_tokens`: their prompt tokens; `uncached_tokens`: of those, the ones
            that instances had to compute (known when a prompt is done).
        finished: requests completed or failed; `generated_tokens`: output tokens, of unfinished requests too.
        ttft_met, ttft_missed: first tokens within and beyond the SLO; a request that waits longer than the SLO
            counts as missed when its first token arrives.
        tpot_met, tpot_missed: finished requests by their mean time per token after the first.
        rejected: requests refused with 429 or 503.
        queued: requests that wait in the gateways now; `queued_tokens`: their prompt tokens.
        oldest_wait_s: how long the longest of the requests without a first token has waited [s].
    """

    arrived: int = 0
    arrived_tokens: int = 0
    uncached_tokens: int = 0
    finished: int = 0
    generated_tokens: int = 0
    ttft_met: int = 0
    ttft_missed: int = 0
    tpot_met: int = 0
    tpot_missed: int = 0
    rejected: int = 0
    queued: int = 0
    queued_tokens: int = 0
    oldest_wait_s: float = 0.0


class ScalingSignals(Struct, frozen=True, gc=False):
    """Input of one scaling tick.

    Args:
        now: of the driver's clock [s]. All times and rates use the clock of `[slo]` and the instances, which may run
            faster or slower than real time.
        pools: the engine pools, in the order in which a request passes them.
        cache: the KV-cache pool; None = there is none.
        traffic: of all gateways.
        npus_free: unallocated NPUs.
        npus_total: NPUs that the pools may have together.
        start_s: from a decision to a serving instance [s], as measured or predicted.
    """

    now: float
    pools: tuple[PoolSignals, ...]
    cache: CacheSignals | None
    traffic: Traffic
    npus_free: int
    npus_total: int
    start_s: float

    def pool(self, name: str) -> PoolSignals:
        """The engine pool of that name.

        Raises: KeyError if there is none.
        """
        for pool in self.pools:
            if pool.pool == name:
                return pool
        raise KeyError(name)

"""Differences between two ticks: totals come in, differences go out."""

from msgspec import Struct

from serving.values.signals import CacheSignals, Traffic


class Gains(Struct, frozen=True, gc=False):
    """Gains of the traffic in `seconds` > 0; the names are those of `Traffic`."""

    seconds: float
    arrived: int
    arrived_tokens: int
    uncached_tokens: int
    finished: int
    ttft_met: int
    ttft_missed: int
    tpot_met: int
    tpot_missed: int
    rejected: int


def traffic_gains(before: Traffic, after: Traffic, seconds: float) -> Gains:
    """Differences, none below 0: a gateway that began anew must not look like negative traffic."""
    return Gains(
        seconds=seconds,
        arrived=max(0, after.arrived - before.arrived),
        arrived_tokens=max(0, after.arrived_tokens - before.arrived_tokens),
        uncached_tokens=max(0, after.uncached_tokens - before.uncached_tokens),
        finished=max(0, after.finished - before.finished),
        ttft_met=max(0, after.ttft_met - before.ttft_met),
        ttft_missed=max(0, after.ttft_missed - before.ttft_missed),
        tpot_met=max(0, after.tpot_met - before.tpot_met),
        tpot_missed=max(0, after.tpot_missed - before.tpot_missed),
        rejected=max(0, after.rejected - before.rejected),
    )


class CacheGains(Struct, frozen=True, gc=False):
    """Gains of the KV-cache pool in `seconds` > 0; the names are those of `CacheSignals`."""

    seconds: float
    looked_up_tokens: int
    hit_tokens: int
    evicted_bytes: int


def cache_gains(before: CacheSignals, after: CacheSignals, seconds: float) -> CacheGains:
    """Differences, none below 0: a server that left takes its counters with it."""
    return CacheGains(
        seconds=seconds,
        looked_up_tokens=max(0, after.looked_up_tokens - before.looked_up_tokens),
        hit_tokens=max(0, after.hit_tokens - before.hit_tokens),
        evicted_bytes=max(0, after.evicted_bytes - before.evicted_bytes),
    )

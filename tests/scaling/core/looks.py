"""Ticks for the tests: a scaler's input, with defaults for all fields irrelevant to a test."""

from collections.abc import Sequence
from typing import Any

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.demand import Demand
from serving.scaling.core.totals import Gains
from serving.values.signals import CacheSignals, PoolSignals, ScalingSignals, Traffic

SLO = SloConfig()
CONFIG = AutoscalerConfig(policy="slo")


def prefill(running: int = 2, **more: Any) -> PoolSignals:
    """Instances of 4 NPUs that compute 10,000 tokens/s."""
    known = {"tokens_per_s": 10_000.0, "max_sequences": 0.0, "kv_blocks_used": 0, "kv_blocks_total": 0}
    return _pool("prefill", running, {"npus_per_instance": 4, **known, **more})


def decode(running: int = 2, **more: Any) -> PoolSignals:
    """Instances of 8 NPUs with 100 sequences and 1,000 KV blocks."""
    known = {"tokens_per_s": 0.0, "max_sequences": 100.0, "kv_blocks_used": 0, "kv_blocks_total": 1000 * running}
    return _pool("decode", running, {"npus_per_instance": 8, **known, **more})


def aggregated(running: int = 2, **more: Any) -> PoolSignals:
    """Instances of 8 NPUs that do both."""
    known = {"tokens_per_s": 10_000.0, "max_sequences": 100.0, "kv_blocks_used": 0, "kv_blocks_total": 1000 * running}
    return _pool("aggregated", running, {"npus_per_instance": 8, **known, **more})


def _pool(name: str, running: int, more: dict[str, Any]) -> PoolSignals:
    usual = {"target": running, "starting": 0, "draining": 0, "queued_tokens": 0, "waiting": 0, "sequences": 0}
    return PoolSignals(**{"pool": name, "running": running, **usual, "low": 1, "high": 20, **more})


def cache(running: int = 2, **more: Any) -> CacheSignals:
    """Servers of 1,000 bytes, half full."""
    usual = {
        "target": running,
        "starting": 0,
        "draining": 0,
        "bytes_used": 500 * running,
        "bytes_total": 1000 * running,
        "looked_up_tokens": 0,
        "hit_tokens": 0,
        "evicted_bytes": 0,
        "low": 1,
        "high": 8,
    }
    return CacheSignals(**{"running": running, **usual, **more})


def look(
    now: float,
    pools: Sequence[PoolSignals] | None = None,
    traffic: Traffic | None = None,
    npus_free: int = 360,
    npus_total: int = 384,
    start_s: float = 5.0,
    cache: CacheSignals | None = None,
) -> ScalingSignals:
    """One tick of a quiet system of two pools."""
    pools = (prefill(), decode()) if pools is None else tuple(pools)
    return ScalingSignals(now, pools, cache, traffic or Traffic(), npus_free, npus_total, start_s)


def gains(seconds: float = 1.0, **more: Any) -> Gains:
    """No events except the named ones."""
    return Gains(**{**dict.fromkeys(Gains.__struct_fields__, 0), "seconds": seconds, **more})


def needs(load: float | None, urgent: float = 0.0, noise: float = 0.0, **more: float) -> Demand:
    """A demand without uncertainty by default."""
    known = {"sure": (load or 0.0) - 2 * noise, "steady": 0.0, "heading": load or 0.0, **more}
    return Demand(load=load, noise=noise, urgent=urgent, why="load", why_urgent="queue", **known)

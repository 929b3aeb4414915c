"""One load under one way of sizing the pools, simulated and judged."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from serving.scaling.core.decision import PoolTarget, ScaleKind, ScalingDecision
from serving.values.signals import ScalingSignals
from serving.virtual.report.latencies import latencies
from serving.virtual.result import SimResult
from serving.virtual.simulation import simulate
from tests.benchmarks.autoscaling.loads import Load
from tests.benchmarks.autoscaling.simple_rule import SimpleRule

_HOUR_S = 3600.0
_PART_S = 10.0
_REQUESTS = 240.0
"""Per instance under "requests": near what a decode instance serves within the SLO."""


@dataclass(frozen=True, slots=True)
class Split:
    """Fixed numbers of instances."""

    prefill: int
    decode: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of a run.

    Attributes:
        attainment: requests that finished within both SLOs, of all that arrived, 0..1; ttft, tpot: within each.
        npu_hours: of instances that served, started or drained, while requests arrived.
        resizes: changed targets, of all pools together.
        sizes: smallest and largest instance counts of prefill and decode.
        given_up: stopped as soon as the required attainment was out of reach; the results end at that point.
    """

    way: str
    requests: int
    hours: float
    attainment: float
    ttft: float
    tpot: float
    npu_hours: float
    resizes: int
    sizes: str
    given_up: bool = False


class Hopeless(Exception):
    """Raised when too many requests have missed their SLOs."""


class Judge:
    """A scaler that changes nothing and ends a run as soon as more requests than `misses` have missed an SLO."""

    def __init__(self, misses: int) -> None:
        self._misses = misses

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """See `Scaler`. Raises: Hopeless."""
        seen = signals.traffic
        if max(seen.ttft_missed, seen.tpot_missed) > self._misses:
            raise Hopeless
        stay = [PoolTarget(one.pool, one.target, one.target, ScaleKind.STAY, "") for one in signals.pools]
        return ScalingDecision(signals.now, tuple(stay))


def autoscaled(load: Load, policy: str) -> tuple[Trial, SimResult]:
    """Run under `[autoscaler] policy`, or "rule" (`SimpleRule`). Returns: the trial, and the full result."""
    own = policy == "rule"
    config = replace(load.config.autoscaler, policy="none" if own else policy, requests_per_instance=_REQUESTS)  # type: ignore[arg-type] # a name from the command line
    scaler = SimpleRule() if own else None
    result = simulate(replace(load.config, autoscaler=config), load.open(), timeline_step_s=_PART_S, scaler=scaler)
    return judged(policy, load, result), result


def static(load: Load, split: Split, needed: float = 0.0) -> tuple[Trial, SimResult | None]:
    """Run with fixed pools; a run that can no longer reach the attainment `needed` ends early."""
    config, workload = load.config, load.open()
    config = replace(
        config, prefill=replace(config.prefill, replicas=split.prefill),
        decode=replace(config.decode, replicas=split.decode), autoscaler=replace(config.autoscaler, policy="none")
    )  # fmt: skip
    way = f"static {split.prefill} + {split.decode}"
    scaler = Judge(int((1 - needed) * workload.count)) if needed and workload.count else None
    try:
        result = simulate(config, workload, timeline_step_s=_PART_S, scaler=scaler)
    except Hopeless:
        return Trial(way, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, "", given_up=True), None
    return judged(way, load, result), result


def judged(way: str, load: Load, result: SimResult) -> Trial:
    """Results of one run."""
    times, slo = latencies(result.requests), load.config.slo
    with np.errstate(invalid="ignore"):
        in_time = times.ttft_s <= slo.ttft_s
        fast = times.finished & (np.isnan(times.tpot_s) | (times.tpot_s <= slo.tpot_s))  # one token has no TPOT
    end_s = float(result.requests.arrival_s[-1])
    hours = end_s / _HOUR_S
    points = [point for point in result.timeline if point.at_s <= end_s]
    busy = [point.prefill_npus + point.decode_npus + point.starting_npus for point in points]
    spans = [after.at_s - before.at_s for before, after in pairwise(points)] + [end_s - points[-1].at_s]
    npu_s = sum(npus * span for npus, span in zip(busy, spans, strict=True))
    parts = []
    for pool, npus in (("prefill", load.config.prefill), ("decode", load.config.decode)):
        counts = [getattr(point, f"{pool}_npus") // npus.npus_per_instance for point in points]
        parts.append(f"{min(counts)}-{max(counts)}" if min(counts) != max(counts) else f"{counts[0]}")
    changes = [change for change in result.scaling if change.at_s <= end_s]
    return Trial(
        way, len(result.requests), hours, float(np.mean(in_time & fast)), float(np.mean(in_time)), float(np.mean(fast)),
        npu_s / _HOUR_S, len(changes), " + ".join(parts)
    )  # fmt: skip

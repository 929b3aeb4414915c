"""Sums over the whole run: work of each pool of instances, bytes of each plane, cost of each kind of fault."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.values.pool_kinds import ENGINE_POOLS
from serving.virtual.result import FaultRecord, InstanceTotals, SimResult, SimulatedPoint

SECONDS_PER_HOUR = 3600.0
PLANES = ("ub", "rdma", "vpc")


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool of instances over the whole run.

    Attributes:
        instances: started over the whole run. peak_npus: most NPUs at one time, from the instances' lifetimes.
        npu_hours: NPU time of its instances from start to stop.
        busy_share: part of the time under load that its work takes at its best rate. running_share: part of that time
            in which a step of any size ran.
        prompt_tokens_per_s, output_tokens_per_s: over the whole run.
        tokens_per_npu_s: both kinds, over the whole time of its NPUs; `tokens_per_busy_npu_s` over their busy time, as
            in published figures of throughput per NPU.
    """

    name: str
    instances: int
    peak_npus: int
    npu_hours: float
    busy_share: float
    running_share: float
    steps: int
    prompt_tokens: int
    output_tokens: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    tokens_per_npu_s: float
    tokens_per_busy_npu_s: float
    peak_batch: int
    peak_kv_share: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class PlaneSummary:
    """One network plane: bytes moved, and the used part of its capacity, 0..1, mean over time and peak."""

    name: str
    nbytes: int
    mean_share: float
    peak_share: float


@dataclass(frozen=True, slots=True)
class FaultSummary:
    """All faults of one kind together; see `FaultRecord`."""

    kind: str
    count: int
    sequences_hit: int
    tokens_lost: int
    npu_seconds_lost: float


def pool_summaries(result: SimResult) -> list[PoolSummary]:
    """Sum up every pool."""
    names = {instance.pool for instance in result.instances}
    ordered = [name for name in ENGINE_POOLS if name in names] + sorted(names.difference(ENGINE_POOLS))
    return [_pool(name, [one for one in result.instances if one.pool == name], result.totals.end_s) for name in ordered]


def plane_summaries(timeline: Sequence[SimulatedPoint]) -> list[PlaneSummary]:
    """Sum up every plane; a point's share holds for the time since the previous point."""
    widths = [after.at_s - before.at_s for before, after in itertools.pairwise(timeline)]
    whole_s = math.fsum(widths)
    found = []
    for name in PLANES:
        shares: list[float] = [getattr(point, f"{name}_share") for point in timeline]
        used_s = math.fsum(width * share for width, share in zip(widths, shares[1:], strict=True))
        nbytes: int = getattr(timeline[-1], f"{name}_bytes") if timeline else 0
        found.append(PlaneSummary(name, nbytes, ratio(used_s, whole_s), max(shares, default=math.nan)))
    return found


def fault_summaries(faults: Iterable[FaultRecord]) -> list[FaultSummary]:
    """Sum up every kind, by name."""
    kinds: dict[str, list[FaultRecord]] = {}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    return [
        FaultSummary(
            kind=kind,
            count=len(members),
            sequences_hit=sum(fault.sequences_hit for fault in members),
            tokens_lost=sum(fault.tokens_lost for fault in members),
            npu_seconds_lost=math.fsum(fault.npu_seconds_lost for fault in members),
        )
        for kind, members in sorted(kinds.items())
    ]


def life_s(instance: InstanceTotals, end_s: float) -> float:
    """Time from start to stop of an instance [s]."""
    return max(0.0, (end_s if math.isnan(instance.stopped_s) else instance.stopped_s) - instance.started_s)


def ratio(part: float, whole: float) -> float:
    """`part / whole`; nan if `whole` is 0."""
    return part / whole if whole > 0 else math.nan


def _pool(name: str, members: Sequence[InstanceTotals], end_s: float) -> PoolSummary:
    npu_seconds = math.fsum(one.npus * life_s(one, end_s) for one in members)
    busy_npu_seconds = math.fsum(one.npus * one.busy_s for one in members)
    loaded = math.fsum(one.npus * one.load_s for one in members)
    prompt_tokens = sum(one.prompt_tokens for one in members)
    output_tokens = sum(one.output_tokens for one in members)
    return PoolSummary(
        name=name,
        instances=len(members),
        peak_npus=_peak_npus(members),
        npu_hours=npu_seconds / SECONDS_PER_HOUR,
        busy_share=ratio(math.fsum(one.npus * one.work_s for one in members), loaded),
        running_share=ratio(math.fsum(one.npus * one.load_busy_s for one in members), loaded),
        steps=sum(one.steps for one in members),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt_tokens_per_s=ratio(prompt_tokens, end_s),
        output_tokens_per_s=ratio(output_tokens, end_s),
        tokens_per_npu_s=ratio(prompt_tokens + output_tokens, npu_seconds),
        tokens_per_busy_npu_s=ratio(prompt_tokens + output_tokens, busy_npu_seconds),
        peak_batch=max(one.peak_batch for one in members),
        peak_kv_share=max(one.peak_kv_share for one in members),
        preemptions=sum(one.preemptions for one in members),
    )


def _peak_npus(members: Sequence[InstanceTotals]) -> int:
    """Most NPUs at one time; at equal times, stops count before starts."""
    changes = [(one.started_s, one.npus) for one in members]
    changes += [(one.stopped_s, -one.npus) for one in members if not math.isnan(one.stopped_s)]
    now = peak = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak

"""Verdict on one candidate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hardware.faults import Fault, FaultKind, recovery_time
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.units import Seconds
from loadgen.report import numbers
from loadgen.report.numbers import limit
from serving.config.serve import ServeConfig
from serving.tools.planning.candidate import NPUS_PER_NODE, Candidate, Shape

# N+1: the loss of a plan at its worst moment, as faults of a simulation. Pure values.
#
# an NPU        its instance pauses until it is rebuilt without it, and continues
# a node        its instances restart on spare NPUs, as many as the instance has
# an instance   it is lost permanently: all of its nodes fail, and there are no spare NPUs

LossUnit = Literal["npu", "node", "instance"]
LossPool = Literal["prefill", "decode", "aggregated"]
WINDOW_S = 600.0
"""Requests that arrive so long after the start of the worst moment show the cost of a loss: an hour's share would
hide it."""


@dataclass(frozen=True, slots=True)
class PlanLoss:
    """Loss of a unit of one pool's first instance."""

    unit: LossUnit
    pool: LossPool


UNITS: tuple[LossUnit, ...] = ("npu", "node", "instance")
LOSSES = tuple(PlanLoss(unit, pool) for unit in UNITS for pool in ("prefill", "decode"))
"""All that are tried of two pools, the smaller ones first."""
LOSSES_TOGETHER = tuple(PlanLoss(unit, "aggregated") for unit in UNITS)
"""The same of one pool that prefills and decodes."""


def faults(loss: PlanLoss, candidate: Candidate, at_s: float) -> tuple[Fault, ...]:
    """Faults of a loss; no repair before the trace ends."""
    first, shape = _first(loss, candidate)
    if loss.unit == "npu":
        node, place = divmod(first, NPUS_PER_NODE)
        return (Fault(Seconds(at_s), FaultKind.NPU, f"n{node}.npu{place}", Seconds(math.inf), 0.0),)
    last = first if loss.unit == "node" else first + shape.npus - 1
    nodes = range(first // NPUS_PER_NODE, last // NPUS_PER_NODE + 1)
    return tuple(Fault(Seconds(at_s), FaultKind.NODE, f"n{node}", Seconds(math.inf), 0.0) for node in nodes)


def with_spares(config: ServeConfig, loss: PlanLoss, candidate: Candidate) -> ServeConfig:
    """The configuration with as many NPUs as the loss leaves a plan: its own, and spare ones for a lost node."""
    npus = candidate.npus + (spare_npus(loss, candidate) if loss.unit == "node" else 0)
    nodes = config.cluster.nodes
    whole = replace(nodes[0], npus=npus, ub_memory_mib=sum(one.ub_memory_mib for one in nodes))
    return replace(config, cluster=replace(config.cluster, nodes=(whole,)))


def spare_npus(loss: PlanLoss, candidate: Candidate) -> int:
    """Spare NPUs for one more instance, in whole nodes; fewer if the supernode has no more."""
    _, shape = _first(loss, candidate)
    whole = candidate.nodes * NPUS_PER_NODE + -(-shape.npus // NPUS_PER_NODE) * NPUS_PER_NODE
    return min(whole, CLOUDMATRIX384.npus) - candidate.npus


def loss_text(loss: PlanLoss, candidate: Candidate) -> str:
    """The loss as text: the lost unit, and its recovery time."""
    _, shape = _first(loss, candidate)
    pool = f"{loss.pool} instance" if shape.npus >= NPUS_PER_NODE else f"{loss.pool} instances"
    if loss.unit == "npu":
        return f"an NPU: its {loss.pool} instance stands still for {_text(FaultKind.NPU)}"
    whose = "its" if shape.npus < NPUS_PER_NODE else "the"
    if loss.unit == "instance":
        what = (
            f"{'an' if loss.pool == 'aggregated' else 'a'} {pool}"
            if shape.npus >= NPUS_PER_NODE
            else f"a node with all of its {pool}"
        )
        return f"{what}: gone for good, no spare NPUs"
    spare = spare_npus(loss, candidate)
    if spare < shape.npus:
        return f"a node: {whose} {pool} cannot start again, the supernode has no spare NPUs"
    again = "starts" if shape.npus >= NPUS_PER_NODE else "start"
    return f"a node: {whose} {pool} {again} again on {spare} spare NPUs after {_text(FaultKind.NODE)}"


def _text(kind: FaultKind) -> str:
    return numbers.duration(recovery_time(kind))


def _first(loss: PlanLoss, candidate: Candidate) -> tuple[int, Shape]:
    """Number of the first NPU of the pool's first instance, and its shape. Prefill instances are placed first."""
    if loss.pool == "prefill":
        return 0, candidate.prefill
    return candidate.prefills * candidate.prefill.npus, candidate.decode


# Verdict on one candidate.


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """SLOs of a plan: limits [s] of each request, kept by this share of all requests."""

    ttft_s: float
    tpot_s: float
    attainment: float

    @property
    def limits(self) -> str:
        """Limits, for people."""
        return f"TTFT {limit(self.ttft_s)} and TPOT {limit(self.tpot_s)}"

    @property
    def text(self) -> str:
        """Limits and share, for people."""
        return f"{self.limits} for {100 * self.attainment:.4g} % of requests"


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """One simulation of a candidate.

    Attributes:
        attainment: requests that finished within every limit, of all that arrived, 0..1.
        ttft_attainment: those with the first token in time. tpot_attainment: those that kept TPOT, of the ones that
            got a first token. Neither is below `attainment`; each describes one pool.
        goodput_per_s: requests within every limit, over the time in which requests arrive.
        hit_share: of prompt tokens that were not computed. pool_share: highest fill of the KV-cache pool.
        prefill_busy, decode_busy: work done under load, of what the pool can do; see `serving.virtual.work_done`.
        prefill_running, decode_running: part of the time under load in which steps ran.
        batch: most sequences of a decode die at a time, mean over its instance.
        why: what limits it, in one sentence with figures.
        worst_attainment: of requests that arrived in the ten minutes from the middle of the busiest one on.
        hit: sequences that a loss hit.
        prompt_tokens, output_tokens: of requests within every limit.
        load_s: time under load: until the last request arrived.
        stopped_s: when the run was stopped because the target was out of reach; None = it was not. All shares are then
            of the requests that were decided by then: finished, or late. pace_attainment: requests that kept TPOT, of
            those that finished: `tpot_attainment` without responses that started too late to finish before the end.
        screened: by `Screen`, not by a simulation.
    """

    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    goodput_per_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    hit_share: float
    pool_share: float
    prefill_busy: float
    decode_busy: float
    batch: float
    why: str
    events: int = 0
    prefill_running: float = math.nan
    decode_running: float = math.nan
    worst_attainment: float = math.nan
    hit: int = 0
    pace_attainment: float = math.nan
    prompt_tokens: int = 0
    output_tokens: int = 0
    load_s: float = math.nan
    stopped_s: float | None = None
    screened: bool = False

    def holds(self, target: PlanTarget) -> bool:
        """Whether enough requests kept the limits."""
        return self.attainment >= target.attainment

    def latency_percent(self, target: PlanTarget) -> float:
        """The 99th percentile that is nearer to its limit, in whole percents of it; infinite without any.

        Smaller differences are treated as equal.
        """
        parts = [self.ttft_p99_s / target.ttft_s, self.tpot_p99_s / target.tpot_s]
        return max((float(round(100 * part)) for part in parts if math.isfinite(part)), default=math.inf)


@dataclass(frozen=True, slots=True)
class PlanProbe:
    """One requested simulation.

    Attributes:
        whole: on the whole trace, else on its busiest stretch.
        rate: factor on arrivals per second, on top of the trace's own.
        loss: in the middle of the busiest minute.
        may_stop: whether it may end as soon as one pool alone has missed more requests than the target allows.
    """

    candidate: Candidate
    whole: bool = True
    rate: float = 1.0
    loss: PlanLoss | None = None
    may_stop: bool = False


Evaluate = Callable[[Sequence[PlanProbe]], list[PlanVerdict]]
"""Simulate; verdicts in the same order."""

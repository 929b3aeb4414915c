"""N+1: the loss of a plan at its worst moment, as faults of a simulation. Pure values.

an NPU        its instance pauses until it is rebuilt without it, and continues
a node        its instances restart on spare NPUs, as many as the instance has
an instance   it is lost permanently: all of its nodes fail, and there are no spare NPUs
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from hardware.faults import Fault, FaultKind, recovery_time
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.units import Seconds
from loadgen.report import numbers
from serving.config.serve import ServeConfig
from serving.tools.planning.candidate import NPUS_PER_NODE, Candidate, Shape

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

"""The three networks of a supernode, and what was measured on the UB one."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from hardware.errors import SpecError
from hardware.units import Seconds


class Plane(StrEnum):
    """A network of the supernode."""

    UB = "ub"
    """Scale-up: all NPUs and CPUs of a supernode, at memory semantics."""
    RDMA = "rdma"
    """Scale-out: NPUs only, RoCE, also between supernodes; carries the prefill-to-decode handoff."""
    VPC = "vpc"
    """Datacentre network: CPUs through one card per node; control plane and storage."""


class PlaneMember(StrEnum):
    """Kind of end that a plane can join."""

    NPU = "npu"
    CPU = "cpu"


class Reach(StrEnum):
    """How far a plane joins its members."""

    SUPERNODE = "supernode"
    DATACENTRE = "datacentre"


@dataclass(frozen=True, slots=True)
class PathMeasure:
    """One measured cell pair of the UB plane: a bandwidth and a small-message latency, one direction, per die."""

    bytes_per_s: float
    latency_s: Seconds

    def __post_init__(self) -> None:
        require_positive(self)


@dataclass(frozen=True, slots=True)
class UbMeasures:
    """Measured performance of the UB plane, which is less than its line rate.

    Field names: the two ends, then the operation, then whether both ends are in one node.
    """

    npu_npu_read_intra: PathMeasure
    npu_npu_read_inter: PathMeasure
    npu_npu_write_intra: PathMeasure
    npu_npu_write_inter: PathMeasure
    npu_cpu_read_intra: PathMeasure
    npu_cpu_read_inter: PathMeasure
    npu_cpu_write_intra: PathMeasure
    npu_cpu_write_inter: PathMeasure


@dataclass(frozen=True, slots=True)
class PlaneSpec:
    """Members of a plane, and its speed on paper. Rates are one direction.

    Attributes:
        plane: which of the three.
        members: kinds of ends that have a port.
        reach: where its members are reachable from one another.
        npu_bytes_per_s: line rate of one NPU; 0 if NPUs have no port.
        cpu_bytes_per_s: line rate of one CPU socket, or of the node's one card on the VPC plane; 0 without a port.
    """

    plane: Plane
    members: frozenset[PlaneMember]
    reach: Reach
    npu_bytes_per_s: float
    cpu_bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(self, allow_zero=("npu_bytes_per_s", "cpu_bytes_per_s"))


# Checks that the hardware descriptions share.


def require_positive(spec: Any, *, allow_zero: tuple[str, ...] = ()) -> None:  # noqa: ANN401 - any spec dataclass
    """Every number of a description must be finite and above zero.

    Args:
        spec: a dataclass instance; fields that are not numbers are left alone.
        allow_zero: names of fields that may be zero.
    Raises: SpecError naming the first field that is not.
    """
    for field in fields(spec):
        value = getattr(spec, field.name)
        if not isinstance(value, int | float):
            continue
        lowest_ok = value >= 0 if field.name in allow_zero else value > 0
        if not (math.isfinite(value) and lowest_ok):
            kind = type(spec).__name__
            raise SpecError(f"{kind}.{field.name} is {value}; it must be a finite number above zero")

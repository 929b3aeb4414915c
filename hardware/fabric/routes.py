"""The links of a topology's three planes, and which of them a transfer crosses.

    plane   one link in and one out for        capacity [GB/s]   source
    RDMA    each die                           25                CloudMatrix384 paper v2, 3.3.1
    UB      each NPU, and each CPU socket      392 and 160       3.3.1, 3.3.2
    VPC     each node's card                   50                3.2

The switches between do not appear: UB is not oversubscribed (3.3.3), and the source has no data on the others. What
limits a single transfer below the line rate (a die reads 147 GB/s of host memory over UB) is its cap: `ub_measure`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from hardware.errors import FabricError
from hardware.spec.plane import PathMeasure, Plane
from hardware.topology import CpuId, DieId, NodeId, NpuId, Topology

# A link: one direction of one port, with a capacity that its transfers share.

LinkId = NewType("LinkId", str)
TransferId = NewType("TransferId", str)
Route = tuple[LinkId, ...]
"""Links that a transfer crosses, each with its whole rate; the order does not matter."""


@dataclass(frozen=True, slots=True)
class Link:
    """Capacity of one link.

    Attributes:
        name: unique on its fabric, such as `rdma/n3.npu5.die1/out`.
        plane: the network that it belongs to.
        bytes_per_s: capacity, one direction; 0 for a link that starts broken.
    Raises: FabricError if the capacity is negative or not finite.
    """

    name: LinkId
    plane: Plane
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s >= 0):
            raise FabricError(f"link {self.name} has {self.bytes_per_s} bytes/s; it must be finite and not negative")


# The links of a topology's three planes, and which of them a transfer crosses.


class Direction(StrEnum):
    """Direction of traffic, as seen from the end that the link belongs to."""

    IN = "in"
    OUT = "out"


End = DieId | NpuId | CpuId | NodeId


def link_id(plane: Plane, end: End, direction: Direction) -> LinkId:
    """Name of an end's link: a die's on RDMA, an NPU's or a socket's on UB, a node's on VPC; UB has none per die."""
    if plane is Plane.UB and isinstance(end, DieId):
        end = end.npu
    return LinkId(f"{plane}/{end}/{direction}")


def rdma_links(topology: Topology, dies: Iterable[DieId]) -> tuple[Link, ...]:
    """Both links of each die."""
    rate = topology.spec.node.npu.die.rdma_bytes_per_s
    return _both(Plane.RDMA, dies, rate)


def ub_links(topology: Topology, npus: Iterable[NpuId], cpus: Iterable[CpuId]) -> tuple[Link, ...]:
    """Both links of each NPU and of each socket."""
    node = topology.spec.node
    return _both(Plane.UB, npus, node.npu.ub_bytes_per_s) + _both(Plane.UB, cpus, node.cpu_ub_bytes_per_s)


def route(plane: Plane, source: End, target: End) -> Route:
    """Out of the source, into the target.

    Raises: FabricError if both have the same link: such bytes do not travel over the plane.
    """
    out, into = link_id(plane, source, Direction.OUT), link_id(plane, target, Direction.IN)
    if out.rpartition("/")[0] == into.rpartition("/")[0]:
        raise FabricError(f"{source} and {target} have one port on the {plane} plane; no bytes travel over it")
    return (out, into)


def source_rank(decode_rank: int, decode_dies: int, prefill_dies: int) -> int:
    """The prefill rank whose copy of the KV a decode rank pulls.

    With one latent KV head every rank of the prefill group holds the same KV, so decode ranks are spread over all of
    them in equal groups: 320 decode ranks and 32 prefill ranks give 0-9 -> 0, ..., 310-319 -> 31.

    Returns: `floor(rank / (decode_dies / prefill_dies))`; where the numbers do not divide, groups differ by one.
    Raises: FabricError if there is no such rank.
    Source: CloudMatrix384 paper, section 4.3.3, for decode TP 1.
    """
    if not 0 <= decode_rank < decode_dies or prefill_dies < 1:
        raise FabricError(f"there is no decode rank {decode_rank} of {decode_dies} with {prefill_dies} prefill ranks")
    return decode_rank * prefill_dies // decode_dies


def ub_measure(topology: Topology, die: DieId, other: DieId | CpuId, *, write: bool = False) -> PathMeasure:
    """Measured cap and latency of a transfer by which one die reads from, or writes to, another end over UB.

    Raises: TopologyError if UB does not join them.
    Source: CloudMatrix384 paper v2, table 1.
    """
    topology.require_plane(Plane.UB, die, other)
    measures = topology.spec.ub_measures
    if isinstance(other, CpuId):
        if die.npu.node == other.node:
            return measures.npu_cpu_write_intra if write else measures.npu_cpu_read_intra
        return measures.npu_cpu_write_inter if write else measures.npu_cpu_read_inter
    if die.npu.node == other.npu.node:
        return measures.npu_npu_write_intra if write else measures.npu_npu_read_intra
    return measures.npu_npu_write_inter if write else measures.npu_npu_read_inter


def _both(plane: Plane, ends: Iterable[End], bytes_per_s: float) -> tuple[Link, ...]:
    return tuple(Link(link_id(plane, end, way), plane, bytes_per_s) for end in ends for way in Direction)

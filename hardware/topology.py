"""Numbering of the supernode: die, NPU, node, supernode, and which plane joins which of them.

Identities are small values that mean the same in every process. A node is numbered over all supernodes
(node 48 is the first one of the second supernode), so an identity needs no more than the path printed in its name:

    n3            NodeId     host 3
    n3.npu5       NpuId      package 5 of host 3
    n3.npu5.die1  DieId      die 1 of that package; its rank is its place in this order over the whole topology
    n3.cpu2       CpuId      socket 2 of host 3
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from hardware.errors import TopologyError
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.plane import Plane, PlaneMember, Reach
from hardware.spec.supernode import SupernodeSpec

NPUS_PER_HOST = CLOUDMATRIX_NODE.npus
_NAME = re.compile(r"n(\d+)\.npu(\d+)(?:\.die(\d+))?")


@dataclass(frozen=True, order=True, slots=True)
class NodeId:
    """A host, numbered over all supernodes."""

    index: int

    def __str__(self) -> str:
        return f"n{self.index}"


@dataclass(frozen=True, order=True, slots=True)
class NpuId:
    """A package: host number and place in the host."""

    node: int
    index: int

    def __str__(self) -> str:
        return f"n{self.node}.npu{self.index}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads "n3.npu5".

        Raises: TopologyError if the name has another form.
        """
        match = _NAME.fullmatch(name)
        if match is None or match[3] is not None:
            raise TopologyError(f"{name!r} is no NPU name; write it like n3.npu5")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, order=True, slots=True)
class DieId:
    """A die: its package and its place in the package."""

    npu: NpuId
    index: int

    def __str__(self) -> str:
        return f"{self.npu}.die{self.index}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads "n3.npu5.die1".

        Raises: TopologyError if the name has another form.
        """
        match = _NAME.fullmatch(name)
        if match is None or match[3] is None:
            raise TopologyError(f"{name!r} is no die name; write it like n3.npu5.die1")
        return cls(NpuId(int(match[1]), int(match[2])), int(match[3]))


@dataclass(frozen=True, order=True, slots=True)
class CpuId:
    """A CPU socket: host number and place in the host."""

    node: int
    index: int

    def __str__(self) -> str:
        return f"n{self.node}.cpu{self.index}"


class PathKind(StrEnum):
    """Distance class of two dies; each kind has its own bandwidth and latency."""

    SAME_DIE = "same_die"
    SAME_NPU = "same_npu"
    INTRA_NODE = "intra_node"
    INTER_NODE = "inter_node"
    INTER_SUPERNODE = "inter_supernode"


Endpoint = NpuId | DieId | CpuId


class Topology:
    """The existing nodes, and the path between any two ends."""

    def __init__(self, spec: SupernodeSpec, nodes: int | None = None) -> None:
        """
        Args:
            spec: the supernode that every node belongs to.
            nodes: hosts that exist, over as many supernodes as they fill; one full supernode if absent.
        Raises: TopologyError if there is not at least one node.
        """
        count = spec.nodes if nodes is None else nodes
        if count < 1:
            raise TopologyError(f"a topology needs at least one node, got {count}")
        self.spec = spec
        self.nodes = count

    @property
    def supernodes(self) -> int:
        """Supernodes that the nodes fill, the last perhaps in part."""
        return -(-self.nodes // self.spec.nodes)

    def node_ids(self) -> Iterator[NodeId]:
        """All hosts in order."""
        return (NodeId(index) for index in range(self.nodes))

    def npu_ids(self, node: int | None = None) -> Iterator[NpuId]:
        """All NPUs in order, or those of one host.

        Raises: TopologyError if there is no such host.
        """
        hosts = range(self.nodes) if node is None else [self._known_node(node)]
        return (NpuId(host, index) for host in hosts for index in range(self.spec.node.npus))

    def die_ids(self, npu: NpuId | None = None) -> Iterator[DieId]:
        """All dies in order of rank, or those of one NPU.

        Raises: TopologyError if there is no such NPU.
        """
        if npu is not None:
            self._require(npu)
        npus = self.npu_ids() if npu is None else iter([npu])
        return (DieId(package, index) for package in npus for index in range(self.spec.node.npu.dies))

    def cpu_ids(self, node: int | None = None) -> Iterator[CpuId]:
        """All CPU sockets in order, or those of one host.

        Raises: TopologyError if there is no such host.
        """
        hosts = range(self.nodes) if node is None else [self._known_node(node)]
        return (CpuId(host, index) for host in hosts for index in range(self.spec.node.cpus))

    def supernode_of(self, end: Endpoint | NodeId) -> int:
        """Number of the supernode that an end belongs to.

        Raises: TopologyError if the topology does not have it.
        """
        return self._known_node(_node_of(end)) // self.spec.nodes

    def path(self, source: DieId, target: DieId) -> PathKind:
        """Distance class of two dies.

        Raises: TopologyError if the topology lacks one of them.
        """
        self._require(source)
        self._require(target)
        if source == target:
            return PathKind.SAME_DIE
        if source.npu == target.npu:
            return PathKind.SAME_NPU
        if source.npu.node == target.npu.node:
            return PathKind.INTRA_NODE
        if self.supernode_of(source) == self.supernode_of(target):
            return PathKind.INTER_NODE
        return PathKind.INTER_SUPERNODE

    def joins(self, plane: Plane, source: Endpoint, target: Endpoint) -> bool:
        """Whether a plane carries bytes from one end to the other.

        Raises: TopologyError if the topology lacks one of the ends.
        """
        self._require(source)
        self._require(target)
        spec = self.spec.planes[plane]
        if not {_member(source), _member(target)} <= spec.members:
            return False
        return spec.reach is Reach.DATACENTRE or self.supernode_of(source) == self.supernode_of(target)

    def planes_joining(self, source: Endpoint, target: Endpoint) -> tuple[Plane, ...]:
        """Planes that carry bytes between two ends, in the order UB, RDMA, VPC; empty if none does.

        Raises: TopologyError if the topology lacks one of the ends.
        """
        return tuple(plane for plane in Plane if self.joins(plane, source, target))

    def require_plane(self, plane: Plane, source: Endpoint, target: Endpoint) -> None:
        """Refuses a transfer over a plane that does not join its ends.

        Raises: TopologyError naming the planes that do.
        """
        if not self.joins(plane, source, target):
            others = ", ".join(self.planes_joining(source, target)) or "none"
            raise TopologyError(f"the {plane} plane does not join {source} and {target}; planes that do: {others}")

    def _known_node(self, node: int) -> int:
        if not 0 <= node < self.nodes:
            raise TopologyError(f"node {node} does not exist; this topology has nodes 0 to {self.nodes - 1}")
        return node

    def _require(self, end: Endpoint) -> None:
        """Refuses an identity with a number that does not exist."""
        self._known_node(_node_of(end))
        node = self.spec.node
        if isinstance(end, DieId) and not 0 <= end.index < node.npu.dies:
            raise TopologyError(f"{end} does not exist; an NPU has dies 0 to {node.npu.dies - 1}")
        place = end.npu.index if isinstance(end, DieId) else end.index
        count = node.cpus if isinstance(end, CpuId) else node.npus
        if not 0 <= place < count:
            raise TopologyError(f"{end} does not exist; places in a node go from 0 to {count - 1}")


def npu_ids(devices: Sequence[int], first_host: int) -> list[NpuId]:
    """Device numbers of a Ray node as identities of the topology.

    A Ray node may present more NPUs than one host has: they fill one host after the other.

    Args:
        devices: numbers within the Ray node.
        first_host: number of the node's first host.
    """
    return [NpuId(first_host + device // NPUS_PER_HOST, device % NPUS_PER_HOST) for device in devices]


def _node_of(end: Endpoint | NodeId) -> int:
    match end:
        case NodeId():
            return end.index
        case DieId():
            return end.npu.node
        case _:
            return end.node


def _member(end: Endpoint) -> PlaneMember:
    return PlaneMember.CPU if isinstance(end, CpuId) else PlaneMember.NPU

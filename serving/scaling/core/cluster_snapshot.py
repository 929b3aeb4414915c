"""Snapshot of the cluster at one tick: Serve's targets and replicas, nodes, members, memory servers. Values, no Ray."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serving.ids import NodeId
from serving.values.pool_view import PoolView


class ReplicaPhase(Enum):
    """Where a replica is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica as Serve lists it.

    Args:
        name: Serve's unique id, the part of our replica ids behind `#`.
        node: None while Ray has not placed it.
        started_at: when Serve asked for its process [s since 1970]; 0 = not known.
        ranks: of a group: how many have a place now; 0 = none has come yet, or it is no group.
        spans: its NPUs by node, if they are on several; empty = all are on `node`.
    """

    name: str
    phase: ReplicaPhase
    node: NodeId | None
    pid: int | None
    started_at: float = 0.0
    ranks: int = 0
    spans: tuple[tuple[NodeId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SeenDeployment:
    """One pool as Serve has it."""

    target: int
    replicas: tuple[SeenReplica, ...] = ()

    def count(self, phase: ReplicaPhase) -> int:
        """Replicas in that phase."""
        return sum([replica.phase is phase for replica in self.replicas])

    @property
    def starting(self) -> int:
        """Replicas asked for that do not serve yet, those without a process included."""
        return max(0, self.target - self.count(ReplicaPhase.SERVING))


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A living node and what it offers in all.

    Args:
        number: of its first host; None while it has none.
        address: by which other hosts reach it.
        head: Ray's first node, which nobody takes back.
        cpus: offered to Ray; gateways need a node that has any.
        disk_full: line about the disk of Ray's session folder there; empty = it is not full, or not known.
    """

    node: NodeId
    npus: int
    memory_mib: int
    number: int | None = None
    address: str = ""
    head: bool = False
    cpus: int = 1
    disk_full: str = ""

    @property
    def name(self) -> str:
        """`n0` for the node whose first host has number 0, as its NPUs are called; else the beginning of Ray's id."""
        return str(self.node[:8]) if self.number is None else f"n{self.number}"


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that Ray has given up, and whose number no other one has.

    Args:
        seen: as it was last.
        since: when it was first seen to be lost [s since 1970].
    """

    seen: SeenNode
    since: float


@dataclass(frozen=True, slots=True)
class SeenMember:
    """An instance's last report on itself, or that of one rank of a group.

    Args:
        node: None = not known.
    """

    name: str
    pool: str
    incarnation: str
    facts: Mapping[str, Any]
    node: NodeId | None = None

    @property
    def serve_name(self) -> str:
        """Serve's name of the replica that it belongs to: of a rank, the shell that holds it now."""
        return str(self.facts.get("shell") or self.name.rpartition("#")[2])


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One look.

    Args:
        at: seconds since 1970.
        deployments: the pools, by name; only those that Serve knows.
        members: instances, and ranks, by the part of their names behind `#`.
        cache: the KV-cache pool; None = there is none, or its controller did not answer.
        others: the application's deployments that are no pools.
        left_nodes: nodes that have ended as they were asked to: nothing was lost with them.
    """

    at: float
    deployments: Mapping[str, SeenDeployment] = field(default_factory=dict)
    nodes: tuple[SeenNode, ...] = ()
    members: Mapping[str, SeenMember] = field(default_factory=dict)
    cache: PoolView | None = None
    others: Mapping[str, SeenDeployment] = field(default_factory=dict)
    lost_nodes: tuple[LostNode, ...] = ()
    left_nodes: frozenset[NodeId] = frozenset()

    def instances_of(self, replica: str) -> list[SeenMember]:
        """Members that belong to a replica, by Serve's name of it: one, or the ranks of a group that have come."""
        return sorted((one for one in self.members.values() if one.serve_name == replica), key=_rank)


def _rank(member: SeenMember) -> int:
    return int(member.facts.get("rank") or 0)

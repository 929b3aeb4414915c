"""Snapshot of the cluster at one tick: Serve's targets and replicas, nodes, members, memory servers. Values, no Ray."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serving.ids import NodeId
from serving.values.pool_view import PoolView


class ReplicaPhase(Enum):
    """Phase in the life cycle of a replica."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica as Serve lists it.

    Args:
        name: Serve's unique id, the part after `#` in our replica ids.
        node: None while Ray has not placed it.
        started_at: when Serve requested its process [s since 1970]; 0 = not known.
        ranks: number of placed ranks of a group; 0 = none yet, or not a group.
        spans: its NPUs by node if on several nodes; empty = all are on `node`.
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
    """Target and replicas of one pool in Serve."""

    target: int
    replicas: tuple[SeenReplica, ...] = ()

    def count(self, phase: ReplicaPhase) -> int:
        """Replicas in that phase."""
        return sum([replica.phase is phase for replica in self.replicas])

    @property
    def starting(self) -> int:
        """Requested replicas that do not serve yet, including those without a process."""
        return max(0, self.target - self.count(ReplicaPhase.SERVING))


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A live node and its total resources.

    Args:
        number: of its first host; None while it has none.
        address: at which other hosts reach it.
        head: Ray's head node, which cannot be released.
        cpus: offered to Ray; gateways need a node with at least one.
        disk_full: message about the full disk of Ray's session folder on the node; empty = not full, or not known.
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
        """`n0` for the node whose first host has number 0, as in NPU names; without a number, a prefix of Ray's id."""
        return str(self.node[:8]) if self.number is None else f"n{self.number}"


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that Ray considers dead and whose number no live node has.

    Args:
        seen: its last known state.
        since: when the loss was first observed [s since 1970].
    """

    seen: SeenNode
    since: float


@dataclass(frozen=True, slots=True)
class SeenMember:
    """The last announcement of an instance, or of one rank of a group.

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
        """Serve's name of the replica that it belongs to; for a rank, its current shell."""
        return str(self.facts.get("shell") or self.name.rpartition("#")[2])


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """State of the cluster at one poll.

    Args:
        at: seconds since 1970.
        deployments: the pools by name, as far as Serve has them.
        members: instances and ranks, by the part of their names after `#`.
        cache: the KV-cache pool; None = there is none, or its controller has not responded yet.
        others: deployments of the application that are not pools.
        lost_nodes: nodes that Ray considers dead.
        left_nodes: nodes that were shut down on request, which is not a loss.
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
        """Members of a replica, by Serve's name: one instance, or the ranks of a group that have joined."""
        return sorted((one for one in self.members.values() if one.serve_name == replica), key=_rank)


def _rank(member: SeenMember) -> int:
    return int(member.facts.get("rank") or 0)

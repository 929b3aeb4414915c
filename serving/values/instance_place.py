"""Placement of an instance or a rank of a group."""

from dataclasses import dataclass
from pathlib import Path

from hardware.topology import NpuId
from serving.ids import NodeId, ReplicaId


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's position in its group.

    Args:
        number: from 0. ranks: the group's planned size when it was created, which determines its share of the experts.
        most: largest size of the group.
        group: name of the group, for example `decode#k3jx9a`.
    """

    number: int
    ranks: int
    most: int
    group: str


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Placement and identity of an instance."""

    replica: ReplicaId
    pool: str
    node: NodeId
    npus: tuple[NpuId, ...]
    segment_path: Path
    """Path of this instance's own UB segment."""
    link_host: str
    threads: int
    rank: RankPlace | None = None
    """Set if the instance is a rank of a group."""

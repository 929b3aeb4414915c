"""Where an instance or a rank of a group was put."""

from dataclasses import dataclass
from pathlib import Path

from hardware.topology import NpuId
from serving.ids import NodeId, ReplicaId


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's place in its group.

    Args:
        number: from 0. ranks: how many they were to be when this one was made; its share of the experts is that.
        most: that the group may have.
        group: name of the group, for example `decode#k3jx9a`.
    """

    number: int
    ranks: int
    most: int
    group: str


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Where an instance was put, and as whom."""

    replica: ReplicaId
    pool: str
    node: NodeId
    npus: tuple[NpuId, ...]
    segment_path: Path
    """Where this instance makes its UB segment; nobody else's."""
    link_host: str
    threads: int
    rank: RankPlace | None = None
    """Set where the instance is one of a group."""

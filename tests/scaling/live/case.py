"""A cluster made of values, and a port to it, for tests of the scaling board."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from serving.cluster.gcs_store import KeptValues
from serving.config.cluster import ClusterConfig, NodeConfig
from serving.config.engine import PoolConfig
from serving.config.kvcache import KvCacheConfig
from serving.config.model import ModelConfig
from serving.config.scaling import AutoscalerConfig
from serving.config.serve import ServeConfig
from serving.errors import UnavailableError
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import (
    ClusterSnapshot,
    LostNode,
    ReplicaPhase,
    SeenDeployment,
    SeenMember,
    SeenNode,
    SeenReplica,
)
from serving.scaling.live.board import ScalingBoard
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.values.group import OperatorOrder, OrderAnswer, SizeOrder
from serving.values.traffic import BOUNDS_S

EMPTY = (0,) * (len(BOUNDS_S) + 1)
SERVING, STARTING, DRAINING = ReplicaPhase.SERVING, ReplicaPhase.STARTING, ReplicaPhase.DRAINING


def config(policy: str = "slo", **autoscaler: float | str) -> ServeConfig:
    """Two nodes of 8 NPUs and 1024 MiB; prefill of 2 NPUs, decode of 4, one memory server of 64 MiB."""
    return ServeConfig(
        model=ModelConfig(path=Path("tiny")),
        cluster=ClusterConfig(nodes=(NodeConfig("a", 8, 1024), NodeConfig("b", 8, 1024))),
        prefill=PoolConfig(replicas=1, npus_per_instance=2, ub_memory_mib=128),
        decode=PoolConfig(replicas=1, npus_per_instance=4, ub_memory_mib=256, max_sequences=32),
        kvcache=KvCacheConfig(replicas=1, ub_memory_mib=64),
        autoscaler=AutoscalerConfig(policy=policy, **autoscaler),  # type: ignore[arg-type] # the caller's word
    )


def grouped() -> ServeConfig:
    """The same with decode groups that begin with two ranks of 1 NPU and 64 MiB each, and may have six."""
    one = config(decode_step_npus=1, min_decode_npus=2, max_decode_npus=6)
    return replace(one, decode=replace(one.decode, ep=2, npus_per_instance=1, ub_memory_mib=64))


def nodes(count: int = 2, npus: int = 8, memory_mib: int = 1024) -> tuple[SeenNode, ...]:
    """Equal nodes `a`, `b` ..."""
    return tuple(SeenNode(NodeId(name), npus, memory_mib) for name in "abcdefgh"[:count])


def replica(name: str, node: str | None = "a", phase: ReplicaPhase = SERVING, started_at: float = 0.0) -> SeenReplica:
    """A replica; its process id is derived from its name."""
    return SeenReplica(name, phase, NodeId(node) if node is not None else None, sum(map(ord, name)), started_at)


def deployment(target: int, *replicas: SeenReplica) -> SeenDeployment:
    """A deployment."""
    return SeenDeployment(target, replicas)


def member(name: str, pool: str, /, incarnation: str = "1", **facts: Any) -> SeenMember:
    """An instance's announcement."""
    return SeenMember(f"{pool}#{name}", pool, incarnation, facts)


def started() -> dict[str, SeenDeployment]:
    """One replica of each pool: prefill and decode on node a, the memory server on node b."""
    return {
        "prefill": deployment(1, replica("p1")),
        "decode": deployment(1, replica("d1")),
        "kvcache": deployment(1, replica("k1", "b")),
    }


@dataclass
class FakeCluster:
    """A `ClusterPort` that shows the test's values, and executes commands immediately."""

    snapshot: ClusterSnapshot = field(default_factory=lambda: ClusterSnapshot(0.0, started(), nodes()))
    now: float = 1000.0
    silent: bool = False
    deaf: bool = False
    """Targets get no response."""
    takes_s: float = 0.0
    """How long a target takes."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    leaving: tuple[str, ...] = ()
    """Replicas that the last call named as victims."""
    orders: list[tuple[str, OperatorOrder | SizeOrder]] = field(default_factory=list)
    order_answer: OrderAnswer | None = None
    """None = the queried rank has ended."""

    async def poll(self, before: ClusterSnapshot) -> ClusterSnapshot:
        """Look like `ClusterPort.poll`."""
        if self.silent:
            raise ClusterSilentError("nobody answers")
        self.snapshot = replace(self.snapshot, at=self.now)
        return self.snapshot

    async def order(self, actor: str, order: OperatorOrder | SizeOrder) -> OrderAnswer:
        """Implements `ClusterPort.order`."""
        self.orders.append((actor, order))
        if self.order_answer is None:
            raise UnavailableError("the rank is gone", retry_after_s=1.0)
        return self.order_answer

    async def set_target(self, pool: str, replicas: int, leaving: Sequence[str] = ()) -> None:
        """Implements `ClusterPort.set_target`."""
        await asyncio.sleep(self.takes_s)
        if self.silent or self.deaf:
            raise ClusterSilentError("nobody answers")
        self.leaving = tuple(leaving)
        self.calls.append((pool, replicas))
        self.set_past_the_board(pool, replicas)

    def set_past_the_board(self, pool: str, replicas: int) -> None:
        """Set a target like Serve's own REST route."""
        known = self.snapshot.deployments
        if pool in known:
            self.snapshot = replace(self.snapshot, deployments={**known, pool: replace(known[pool], target=replicas)})

    def place(self, pool: str, *replicas: SeenReplica) -> None:
        """Replace the replicas of a pool."""
        known = self.snapshot.deployments
        self.snapshot = replace(self.snapshot, deployments={**known, pool: replace(known[pool], replicas=replicas)})

    def lose_node(self, name: str) -> None:
        """A node dies with all its replicas."""
        gone = next(node for node in self.snapshot.nodes if node.node == name)
        left = {
            pool: replace(seen, replicas=tuple(one for one in seen.replicas if one.node != name))
            for pool, seen in self.snapshot.deployments.items()
        }
        rest = tuple(node for node in self.snapshot.nodes if node != gone)
        lost = (*self.snapshot.lost_nodes, LostNode(gone, self.now))
        self.snapshot = replace(self.snapshot, nodes=rest, deployments=left, lost_nodes=lost)

    def clock(self) -> float:
        """Seconds since 1970, set by the test."""
        return self.now


def board_of(
    cluster: FakeCluster, kept: KeptValues | None = None, policy: str = "slo", **settings: float | str
) -> ScalingBoard:
    """A board after its first poll."""
    board = ScalingBoard(config(policy, **settings), cluster, kept or KeptValues(), cluster.clock)
    asyncio.run(board.poll())
    return board

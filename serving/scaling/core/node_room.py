"""Capacity for a pool's replicas on existing nodes and on nodes that Ray may add, and the waits for added nodes."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from msgspec import structs

from serving.config.scaling import AutoscalerConfig
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment, SeenNode
from serving.scaling.core.decision import LedgerEntry, PoolTarget, ScaleKind
from serving.scaling.core.leavers import Placed, emptied, leavers, leavers_of_the_fullest
from serving.scaling.core.replica_room import ReplicaSize, as_one_node, fits, shortage, used

WAITS = "waits for a node"


class NodeRoom:
    """Capacity checks for targets. Time and snapshots are passed in.

    Args:
        sizes: of one replica of each pool.
        came: called with the pool and the time when a node has been added for a pool that waited.
        anywhere: the NPUs of a replica may be on several nodes; otherwise all are on one node.
    """

    def __init__(
        self,
        settings: AutoscalerConfig,
        sizes: Mapping[str, ReplicaSize],
        came: Callable[[str, float], None],
        *,
        anywhere: bool = False,
    ) -> None:
        self._settings = settings
        self._sizes = sizes
        self._came = came
        self._anywhere = anywhere
        self._waits = NodeWaits(settings.node_wait_s)
        self._reported: dict[str, int] = {}
        """Id of the decision that records the wait of a pool, by pool."""

    @property
    def grows(self) -> bool:
        """Whether Ray may add nodes."""
        return self._settings.nodes == "ray"

    @property
    def usual_s(self) -> float:
        """Median wait for an added node [s], see `NodeWaits.usual_s`."""
        return self._waits.usual_s

    def fits(self, pool: str, snapshot: ClusterSnapshot) -> int:
        """The largest target that fits on the existing nodes."""
        return fits(pool, self._sizes, *self._places(snapshot))

    def used(self, snapshot: ClusterSnapshot) -> ReplicaSize:
        """NPUs and UB memory held by replicas, draining ones included."""
        return used(self._sizes, snapshot.deployments)

    def most(self, pool: str, snapshot: ClusterSnapshot) -> int:
        """The largest accepted target: what fits, or the pool's maximum if that is more and Ray may add nodes."""
        room = self.fits(pool, snapshot)
        return max(room, self._settings.bounds(pool)[1]) if self.grows else room

    def shortage(self, pool: str, snapshot: ClusterSnapshot) -> str:
        """Why one replica more than fits cannot be placed."""
        return shortage(pool, self._sizes, *self._places(snapshot))

    def wait_of(self, pool: str, target: int, snapshot: ClusterSnapshot) -> str:
        """Suffix of a decision's reason for a target that does not fit yet; "" if it fits."""
        return "" if target <= self.fits(pool, snapshot) else f"; {self.shortage(pool, snapshot)}: {WAITS}"

    def granted(self, wanted: PoolTarget, snapshot: ClusterSnapshot) -> PoolTarget | None:
        """A scaler's target, reduced to what fits; the reason mentions the reduction.

        Returns: None if the target does not change, or differs from the one in the scaler's signals.
        """
        pool, target = wanted.pool, wanted.target
        seen = snapshot.deployments.get(pool)
        if seen is None or seen.target != wanted.before:
            return None
        if target > seen.target:
            target = max(seen.target, min(target, self.most(pool, snapshot)))
        if target == seen.target:
            return None
        cut = target != wanted.target
        fits = f"; {wanted.target} wanted, {target} fit: {self.shortage(pool, snapshot)}" if cut else ""
        reason = f"{wanted.reason}{fits}{self.wait_of(pool, target, snapshot)}"
        return structs.replace(wanted, target=target, reason=reason)

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited for a node [s]; None = it does not wait."""
        return self._waits.waited_s(pool, now)

    def check(self, pool: str, snapshot: ClusterSnapshot, now: float) -> PoolTarget | None:
        """Compare a pool's target with the available capacity, if Ray may add nodes.

        Returns: the change to record. A wait that no decision has recorded yet has started, because a node was lost or
            the pool started without one; capacity has become available; or the wait has timed out, and the pool
            returns to a smaller target.
        """
        if not self.grows:
            return None
        target, room, reported = snapshot.deployments[pool].target, self.fits(pool, snapshot), self._reported.get(pool)
        end = self._waits.observe(pool, target, room, now)
        if end is None:
            if reported or self.waited_s(pool, now) is None:
                return None
            return PoolTarget(pool, target, target, ScaleKind.STAY, f"{self.shortage(pool, snapshot)}: {WAITS}")
        self._reported.pop(pool, None)
        after = duration_text(end.after_s)
        if end.how == "came":
            self._came(pool, now)
            return PoolTarget(pool, target, target, ScaleKind.STAY, f"room came after {after}")
        least = max(room, self._settings.bounds(pool)[0])
        if least >= target:  # the pool's minimum has to serve
            reason = f"no node came for {after}, and {target} is the least of {pool}: {WAITS}"
            return PoolTarget(pool, target, target, ScaleKind.STAY, reason)
        reason = f"no node came for {after}, {room} fit: {self.shortage(pool, snapshot)}"
        return PoolTarget(pool, target, least, ScaleKind.FIT, reason)

    def note(self, entry: LedgerEntry) -> None:
        """A decision was recorded. If its pool now waits for a node, this decision shows the wait."""
        if entry.reason.endswith(WAITS):
            self._reported[entry.pool] = entry.id
            self._waits.begin(entry.pool, entry.at)
        elif entry.target != entry.before:
            self._reported.pop(entry.pool, None)
        if entry.target < entry.before:
            self._waits.forget(entry.pool)

    def row(self, entry: LedgerEntry, now: float) -> dict[str, Any]:
        """A decision ready for JSON, with how long its pool has waited for a node [s]; None = it does not wait."""
        waits = self._reported.get(entry.pool) == entry.id
        return {**entry.row(), "waits_s": self.waited_s(entry.pool, now) if waits else None}

    def leaving(self, pool: str, target: int, snapshot: ClusterSnapshot) -> tuple[tuple[str, ...], str]:
        """Replicas to remove so that a pool has `target`, and a suffix of the reason that names the hosts emptied.

        Replicas that do not serve yet are removed first; Serve selects them.
        """
        placed = [
            Placed(name, one.name, one.node, self._sizes[name].of(one).npus, one.started_at)
            for name, seen in snapshot.deployments.items()
            if name in self._sizes
            for one in seen.replicas
            if one.node is not None and one.phase is not ReplicaPhase.DRAINING
            if name != pool or one.phase is ReplicaPhase.SERVING
        ]
        head = {node.node for node in snapshot.nodes if node.head}
        count = max(0, snapshot.deployments[pool].count(ReplicaPhase.SERVING) - target)
        if not self.grows:
            return leavers_of_the_fullest(pool, count, placed), ""
        names = leavers(pool, count, placed, head)
        hosts = [node.name for node in snapshot.nodes if node.node in emptied(names, placed, head)]
        return names, f"; {', '.join(hosts)} {'are' if len(hosts) > 1 else 'is'} empty then" if hosts else ""

    def _places(self, snapshot: ClusterSnapshot) -> tuple[Mapping[str, SeenDeployment], Sequence[SeenNode]]:
        if self._anywhere:
            return as_one_node(snapshot.deployments, snapshot.nodes)
        return snapshot.deployments, snapshot.nodes


# Targets that wait for a node which Ray may add: how long, and whether the wait succeeded or timed out. Pure.

KEPT = 8
"""Latest successful waits from which `usual_s` is computed."""


@dataclass(frozen=True, slots=True)
class NodeWait:
    """A finished wait: `came` if capacity became available, `vain` if the wait timed out, and its length [s]."""

    how: Literal["came", "vain"]
    after_s: float


class NodeWaits:
    """Waits by pool. Time is passed in.

    Args:
        limit_s: after which a wait times out.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[str, float] = {}
        self._came: deque[float] = deque(maxlen=KEPT)

    @property
    def usual_s(self) -> float:
        """Median time from a target that needs a node until it fits [s]; 0 = no wait has succeeded yet."""
        return median(self._came) if self._came else 0.0

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited [s]; None = it does not wait."""
        since = self._since.get(pool)
        return now - since if since is not None else None

    def observe(self, pool: str, target: int, room: int, now: float) -> NodeWait | None:
        """Update a pool's wait from its target and the number of replicas that fit.

        Returns: the finished wait, once; None if the pool still waits or does not wait.
        """
        since = self._since.get(pool)
        if target > room:
            waited = now - self._since.setdefault(pool, now)
            if waited < self._limit_s:
                return None
            del self._since[pool]
            return NodeWait("vain", waited)
        if since is None:
            return None
        del self._since[pool]
        self._came.append(now - since)
        return NodeWait("came", now - since)

    def begin(self, pool: str, now: float) -> None:
        """Start the wait of a pool whose target does not fit, unless it already waits."""
        self._since.setdefault(pool, now)

    def forget(self, pool: str) -> None:
        """Cancel the pool's wait: its target was lowered deliberately."""
        self._since.pop(pool, None)


# Durations as shown in reasons.


def duration_text(seconds: float) -> str:
    """A duration in the largest unit that is exact: `90 s`, `10 min`, `2 h`."""
    if seconds >= 7200 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s"

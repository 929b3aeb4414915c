"""Room for a pool's replicas: on the nodes there are, on those that Ray may add; and the waits for these."""

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
    """Answers about room. Time is passed in, so are looks.

    Args:
        sizes: of a replica of each pool.
        came: told of each pool for which a node came, and when.
        anywhere: the NPUs of a replica may be on any nodes; otherwise it lies whole on one.
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
        self._told: dict[str, int] = {}
        """Id of the decision that says that a pool waits, by pool."""

    @property
    def grows(self) -> bool:
        """Whether Ray may add nodes."""
        return self._settings.nodes == "ray"

    @property
    def usual_s(self) -> float:
        """Implements `NodeWaits.usual_s`."""
        return self._waits.usual_s

    def fits(self, pool: str, sight: ClusterSnapshot) -> int:
        """The largest target that fits on the nodes there are."""
        return fits(pool, self._sizes, *self._places(sight))

    def used(self, sight: ClusterSnapshot) -> ReplicaSize:
        """NPUs and UB memory that somebody has, replicas that leave included."""
        return used(self._sizes, sight.deployments)

    def most(self, pool: str, sight: ClusterSnapshot) -> int:
        """The largest target that is accepted: what fits, or where Ray may add nodes the pool's most."""
        room = self.fits(pool, sight)
        return max(room, self._settings.bounds(pool)[1]) if self.grows else room

    def shortage(self, pool: str, sight: ClusterSnapshot) -> str:
        """Why one more than fits has no place."""
        return shortage(pool, self._sizes, *self._places(sight))

    def wait_of(self, pool: str, target: int, sight: ClusterSnapshot) -> str:
        """End of a reason, for a target that has no room yet."""
        return "" if target <= self.fits(pool, sight) else f"; {self.shortage(pool, sight)}: {WAITS}"

    def granted(self, wanted: PoolTarget, sight: ClusterSnapshot) -> PoolTarget | None:
        """A scaler's target, cut to what fits; the reason then says so.

        Returns: None if nothing changes, or the pool has another target by now than the scaler saw.
        """
        pool, target = wanted.pool, wanted.target
        seen = sight.deployments.get(pool)
        if seen is None or seen.target != wanted.before:
            return None
        if target > seen.target:
            target = max(seen.target, min(target, self.most(pool, sight)))
        if target == seen.target:
            return None
        cut = target != wanted.target
        fits = f"; {wanted.target} wanted, {target} fit: {self.shortage(pool, sight)}" if cut else ""
        reason = f"{wanted.reason}{fits}{self.wait_of(pool, target, sight)}"
        return structs.replace(wanted, target=target, reason=reason)

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited for a node; None = it does not."""
        return self._waits.waited_s(pool, now)

    def look(self, pool: str, sight: ClusterSnapshot, now: float) -> PoolTarget | None:
        """Compare a pool's target with the room there is, if Ray may add nodes.

        Returns: what is to be written down: that a wait has begun which no decision tells of, since a node was lost or
        the pool began without one; that room came; that none came, and to which target the pool goes back.
        """
        if not self.grows:
            return None
        target, room, told = sight.deployments[pool].target, self.fits(pool, sight), self._told.get(pool)
        end = self._waits.observe(pool, target, room, now)
        if end is None:
            if told or self.waited_s(pool, now) is None:
                return None
            return PoolTarget(pool, target, target, ScaleKind.STAY, f"{self.shortage(pool, sight)}: {WAITS}")
        self._told.pop(pool, None)
        after = duration_text(end.after_s)
        if end.how == "came":
            self._came(pool, now)
            return PoolTarget(pool, target, target, ScaleKind.STAY, f"room came after {after}")
        least = max(room, self._settings.bounds(pool)[0])
        if least >= target:  # somebody has to serve
            reason = f"no node came for {after}, and {target} is the least of {pool}: {WAITS}"
            return PoolTarget(pool, target, target, ScaleKind.STAY, reason)
        reason = f"no node came for {after}, {room} fit: {self.shortage(pool, sight)}"
        return PoolTarget(pool, target, least, ScaleKind.FIT, reason)

    def note(self, entry: LedgerEntry) -> None:
        """A decision was written down. Effects: if its pool waits for a node then, it is the one that says so."""
        if entry.reason.endswith(WAITS):
            self._told[entry.pool] = entry.id
            self._waits.begin(entry.pool, entry.at)
        elif entry.target != entry.before:
            self._told.pop(entry.pool, None)
        if entry.target < entry.before:
            self._waits.forget(entry.pool)

    def row(self, entry: LedgerEntry, now: float) -> dict[str, Any]:
        """A decision ready for JSON, with how long its pool has waited for a node, None = it does not."""
        waits = self._told.get(entry.pool) == entry.id
        return {**entry.row(), "waits_s": self.waited_s(entry.pool, now) if waits else None}

    def leaving(self, pool: str, target: int, sight: ClusterSnapshot) -> tuple[tuple[str, ...], str]:
        """Which replicas leave if a pool is to have `target`, and the end of a reason: hosts that are empty then.

        Replicas that do not serve yet leave first; which of these, is Serve's choice.
        """
        placed = [
            Placed(name, one.name, one.node, self._sizes[name].of(one).npus, one.started_at)
            for name, seen in sight.deployments.items()
            if name in self._sizes
            for one in seen.replicas
            if one.node is not None and one.phase is not ReplicaPhase.DRAINING
            if name != pool or one.phase is ReplicaPhase.SERVING
        ]
        head = {node.node for node in sight.nodes if node.head}
        count = max(0, sight.deployments[pool].count(ReplicaPhase.SERVING) - target)
        if not self.grows:
            return leavers_of_the_fullest(pool, count, placed), ""
        names = leavers(pool, count, placed, head)
        hosts = [node.name for node in sight.nodes if node.node in emptied(names, placed, head)]
        return names, f"; {', '.join(hosts)} {'are' if len(hosts) > 1 else 'is'} empty then" if hosts else ""

    def _places(self, sight: ClusterSnapshot) -> tuple[Mapping[str, SeenDeployment], Sequence[SeenNode]]:
        if self._anywhere:
            return as_one_node(sight.deployments, sight.nodes)
        return sight.deployments, sight.nodes


# Targets that wait for a node which Ray may add: for how long, and when the wait is over or in vain. Pure.

KEPT = 8
"""Waits of which `usual_s` is made."""


@dataclass(frozen=True, slots=True)
class NodeWait:
    """A wait that has ended: `came` after so many seconds, or `vain`."""

    how: Literal["came", "vain"]
    after_s: float


class NodeWaits:
    """Waits by pool. Time is passed in.

    Args:
        limit_s: a wait that is longer is in vain.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[str, float] = {}
        self._came: deque[float] = deque(maxlen=KEPT)

    @property
    def usual_s(self) -> float:
        """How long a node takes to come, from the target that needs it on; 0 = none has come yet."""
        return median(self._came) if self._came else 0.0

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited; None = it does not."""
        since = self._since.get(pool)
        return now - since if since is not None else None

    def observe(self, pool: str, target: int, room: int, now: float) -> NodeWait | None:
        """A look at a pool: its target, and how many replicas have room. Returns: the end of a wait, once.

        Effects: begins, or ends, the pool's wait.
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
        """A pool was given a target without room: it waits from now on, unless it does already."""
        self._since.setdefault(pool, now)

    def forget(self, pool: str) -> None:
        """The pool's target was made smaller on purpose: nothing is waited for, and nothing came."""
        self._since.pop(pool, None)


# Durations as people read them in reasons.


def duration_text(seconds: float) -> str:
    """A time in the unit that a person would use: `90 s`, `10 min`, `2 h`."""
    if seconds >= 7200 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s"

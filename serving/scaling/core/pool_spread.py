"""Pools and gateways that a lost host has crowded, as the board sees them: when each is spread again, see
`spreading.py`."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from serving.config.scaling import AutoscalerConfig
from serving.config.upgrade_rules import GATEWAY
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment
from serving.scaling.core.decision import LedgerEntry, PoolTarget, ScaleKind
from serving.scaling.core.leavers import Placed, leavers_of_the_fullest
from serving.scaling.core.replica_room import ReplicaSize, fits, hosts_with_room
from serving.scaling.core.spreading import PoolPlaces, Spreading

REASONS = {"more": "one more, so that one can leave the fullest host", "less": "one leaves the fullest host"}


class PoolSpread:
    """Decides about every pool but groups of ranks, which stay where they are. Time is passed in, so are looks.

    Args:
        sizes: of a replica of each pool.
        last: the newest decision about a pool, perhaps of a board that this one has replaced; None = there is none.
        gateways: they may be anywhere, so they are spread as pools are.
    """

    def __init__(
        self,
        settings: AutoscalerConfig,
        sizes: Mapping[str, ReplicaSize],
        last: Callable[[str], LedgerEntry | None],
        *,
        gateways: bool = False,
    ) -> None:
        moves = settings.nodes == "fixed" and settings.spread_after_s > 0
        self._sizes = {pool: size for pool, size in sizes.items() if size.ranks == 1} if moves else {}
        self._gateways = moves and gateways
        self._spreading = Spreading(settings.spread_after_s)
        for pool in (*self._sizes, GATEWAY):
            newest = last(pool)
            if newest is not None and newest.kind is ScaleKind.SPREAD and newest.target > newest.before:
                self._spreading.resume(pool, newest.before, newest.at)

    def look(self, pool: str, sight: ClusterSnapshot, now: float, *, held: bool) -> PoolTarget | None:
        """The next half of a move, if it is time for one.

        Args:
            held: by a person, so that no move may begin.
        """
        if pool not in self._sizes or len(sight.nodes) < 2:
            return None
        seen, room = sight.deployments[pool], (self._sizes, sight.deployments, sight.nodes)
        fitting = not held and fits(pool, *room) > seen.target
        return self._step(pool, seen, sight, hosts_with_room(pool, *room), now, room=fitting)

    def look_gateways(self, sight: ClusterSnapshot, now: float) -> tuple[PoolTarget, tuple[str, ...]] | None:
        """The next half of a move of gateways, and which of them leave, if it is time for one."""
        seen = sight.others.get(GATEWAY)
        if not self._gateways or seen is None or len(sight.nodes) < 2:
            return None
        able = {node.node for node in sight.nodes if node.cpus}
        to = self._step(GATEWAY, seen, sight, able, now, room=bool(able))
        if to is None:
            return None
        serving = [one for one in seen.replicas if one.phase is ReplicaPhase.SERVING]
        placed = [Placed(GATEWAY, one.name, one.node, 0, one.started_at) for one in serving if one.node is not None]
        return to, leavers_of_the_fullest(GATEWAY, max(0, len(serving) - to.target), placed)

    def _step(
        self,
        pool: str,
        seen: SeenDeployment,
        sight: ClusterSnapshot,
        able: Collection[NodeId],
        now: float,
        *,
        room: bool,
    ) -> PoolTarget | None:
        there = Counter(one.node for one in seen.replicas if one.phase is ReplicaPhase.SERVING)
        places = PoolPlaces(
            target=seen.target,
            serving={one.node: there[one.node] for one in sight.nodes if there[one.node] or one.node in able},
            steady=len(seen.replicas) == there.total() == seen.target,
            room=room,
        )
        step = self._spreading.look(pool, places, now)
        return None if step is None else PoolTarget(pool, seen.target, step[0], ScaleKind.SPREAD, REASONS[step[1]])

    def note(self, entry: LedgerEntry) -> None:
        """A decision was written down. Effects: one of somebody else ends a move of its pool."""
        if entry.kind is not ScaleKind.SPREAD:
            self._spreading.end(entry.pool)

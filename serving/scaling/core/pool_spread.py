"""Rebalancing of pools and gateways that the loss of a host has concentrated on the remaining hosts."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.config.scaling import AutoscalerConfig
from serving.config.upgrade_rules import GATEWAY
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment
from serving.scaling.core.decision import LedgerEntry, PoolTarget, ScaleKind
from serving.scaling.core.leavers import Placed, leavers_of_the_fullest
from serving.scaling.core.replica_room import ReplicaSize, fits, hosts_with_room

REASONS = {"more": "one more, so that one can leave the fullest host", "less": "one leaves the fullest host"}


class PoolSpread:
    """Rebalancing decisions for all pools except groups of ranks, which stay. Time and snapshots are passed in.

    Args:
        sizes: of one replica of each pool.
        last: returns the latest decision about a pool, possibly of a previous board; None = there is none.
        gateways: whether gateways may run on any host, and are spread like pools.
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

    def check(self, pool: str, snapshot: ClusterSnapshot, now: float, *, held: bool) -> PoolTarget | None:
        """The next step of a pool's move, if one is due.

        Args:
            held: whether a manual override holds the pool, so that no move may start.
        """
        if pool not in self._sizes or len(snapshot.nodes) < 2:
            return None
        seen, room = snapshot.deployments[pool], (self._sizes, snapshot.deployments, snapshot.nodes)
        fitting = not held and fits(pool, *room) > seen.target
        return self._step(pool, seen, snapshot, hosts_with_room(pool, *room), now, room=fitting)

    def check_gateways(self, snapshot: ClusterSnapshot, now: float) -> tuple[PoolTarget, tuple[str, ...]] | None:
        """The next step of a move of gateways, and the names of the gateways to remove, if a step is due."""
        seen = snapshot.others.get(GATEWAY)
        if not self._gateways or seen is None or len(snapshot.nodes) < 2:
            return None
        able = {node.node for node in snapshot.nodes if node.cpus}
        to = self._step(GATEWAY, seen, snapshot, able, now, room=bool(able))
        if to is None:
            return None
        serving = [one for one in seen.replicas if one.phase is ReplicaPhase.SERVING]
        placed = [Placed(GATEWAY, one.name, one.node, 0, one.started_at) for one in serving if one.node is not None]
        return to, leavers_of_the_fullest(GATEWAY, max(0, len(serving) - to.target), placed)

    def _step(
        self,
        pool: str,
        seen: SeenDeployment,
        snapshot: ClusterSnapshot,
        able: Collection[NodeId],
        now: float,
        *,
        room: bool,
    ) -> PoolTarget | None:
        there = Counter(one.node for one in seen.replicas if one.phase is ReplicaPhase.SERVING)
        places = PoolPlaces(
            target=seen.target,
            serving={one.node: there[one.node] for one in snapshot.nodes if there[one.node] or one.node in able},
            steady=len(seen.replicas) == there.total() == seen.target,
            room=room,
        )
        step = self._spreading.check(pool, places, now)
        return None if step is None else PoolTarget(pool, seen.target, step[0], ScaleKind.SPREAD, REASONS[step[1]])

    def note(self, entry: LedgerEntry) -> None:
        """A decision was recorded. One that is not part of a move ends the move of its pool."""
        if entry.kind is not ScaleKind.SPREAD:
            self._spreading.end(entry.pool)


# Rebalances a pool over hosts: add one replica, then remove one from the host that has most. Pure.
#
#      a: decode, decode    b (is back): -          uneven for long enough: 2 -> 3, and Ray may place the new one on b
#      a: decode, decode    b: decode               all three serve: 3 -> 2, remove one of a (`leavers_of_the_fullest`)
#      a: decode            b: decode
#
# The host of a single new replica cannot be chosen: Ray takes hosts in turn. So a move may not help; after three such
# moves in a row the pool is left as it is until a host is added or lost.

MOVES = 3
"""Moves without improvement after which a pool is left alone."""
MOVE_S = 300.0
"""Longest wait for the added replica to serve [s]."""


@dataclass(frozen=True, slots=True)
class PoolPlaces:
    """A pool at one poll.

    Args:
        target: replicas requested from Serve.
        serving: number of serving replicas by host; hosts with capacity for a replica but none are included, with 0.
        steady: no replica of the pool is starting or draining.
        room: whether one more than the target fits.
    """

    target: int
    serving: Mapping[NodeId, int]
    steady: bool
    room: bool

    @property
    def uneven(self) -> bool:
        """Whether a host has at least two replicas more than another that could take one."""
        counts = self.serving.values()
        return bool(counts) and max(counts) - min(counts) >= 2

    @property
    def crowding(self) -> int:
        """Sum of squares of the replicas per host: smaller is more even."""
        return sum(count * count for count in self.serving.values())


@dataclass(slots=True)
class _State:
    """State of a pool's current move and its previous ones.

    Args:
        hosts: present when counting of moves started.
        moves: made since then that did not make the pool more even.
        crowding: before the latest move.
        uneven_since: None = the pool is even, or not steady.
        base: target to return to; None = no move is in progress.
    """

    hosts: frozenset[NodeId] = frozenset()
    moves: int = 0
    crowding: int = 0
    uneven_since: float | None = None
    base: int | None = None
    began: float = 0.0


@dataclass(slots=True)
class Spreading:
    """Moves of all pools. Time is passed in [s].

    Args:
        after_s: how long a pool must have been uneven before a move; 0 disables moves.
    """

    after_s: float
    _pools: dict[str, _State] = field(default_factory=dict)

    def check(self, pool: str, places: PoolPlaces, now: float) -> tuple[int, Literal["more", "less"]] | None:
        """The target that a pool should get now, and which step of a move that is; None = the target stays.

        A target changed by another party during the move ends the move.
        """
        if not self.after_s:
            return None
        state = self._pools.setdefault(pool, _State())
        if state.base is not None:
            return self._go_on(state, places, now)
        hosts = frozenset(places.serving)
        if hosts != state.hosts or not places.uneven or (places.steady and places.crowding < state.crowding):
            state.hosts, state.moves, state.crowding = hosts, 0, 0
        if not places.uneven or not places.steady:
            state.uneven_since = None
            return None
        if state.uneven_since is None:
            state.uneven_since = now
        if state.moves >= MOVES or not places.room or now - state.uneven_since < self.after_s:
            return None
        state.base, state.began, state.uneven_since = places.target, now, None
        state.moves, state.crowding = state.moves + 1, places.crowding
        return places.target + 1, "more"

    def resume(self, pool: str, base: int, now: float) -> None:
        """Continue a move that a previous board started."""
        self._pools[pool] = _State(base=base, began=now)

    def end(self, pool: str) -> None:
        """End the pool's move at its current target, because another party has set the target."""
        if (state := self._pools.get(pool)) is not None:
            state.base = state.uneven_since = None

    def _go_on(self, state: _State, places: PoolPlaces, now: float) -> tuple[int, Literal["less"]] | None:
        base = state.base
        if base is None or places.target != base + 1:
            state.base = None
            return None
        serves = places.steady and sum(places.serving.values()) > base
        if not serves and now - state.began < MOVE_S:
            return None
        state.base = None
        return base, "less"

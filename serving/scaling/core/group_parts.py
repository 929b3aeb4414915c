"""Decode groups of ranks that the scaler resizes: observed sizes and resize commands. Pure.

    scaler -> target in parts -> `granted` -> `due` -> ResizeRankGroup, as `cloudmatrix experts resize` sends it
                                    ▲
    groups, at each poll ──► `see` ─┘

A group whose intended size differs from the commanded one was resized manually, or has given up growing: its pool is
held against the policy, like a pool whose number of replicas was set without the board.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from msgspec import structs

from serving.config.serve import ServeConfig
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember, SeenReplica
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.decode_parts import DecodeParts, SizedInstance, as_replicas, in_parts
from serving.scaling.core.node_room import NodeRoom
from serving.scaling.core.replica_room import ReplicaSize, room_by_node
from serving.scaling.core.signals import sizes_of
from serving.values.scaling_operations import ResizeRankGroup
from serving.values.signals import ScalingSignals

DECODE = "decode"


def group_parts(config: ServeConfig) -> "GroupParts | None":
    """The rules if `[autoscaler] decode_step_npus` has an effect in a running system; else None."""
    scaler = config.autoscaler
    decode = config.pools.get(DECODE)
    if scaler.policy == "none" or not scaler.decode_step_npus or decode is None or decode.ep == 1:
        return None
    return GroupParts(config)


class GroupParts:
    """Sizes of the decode groups, in parts of `decode_step_npus` NPUs.

    Attributes:
        target: parts of all groups together; 0 before the first poll.
    """

    def __init__(self, config: ServeConfig) -> None:
        scaler, decode = config.autoscaler, config.decode
        self._step_npus = scaler.decode_step_npus
        self._step_ranks = self._step_npus // decode.npus_per_instance
        self._first = decode.ep // self._step_ranks
        fewest, most = scaler.min_decode_npus // self._step_npus, scaler.max_decode_npus // self._step_npus
        self._rules = DecodeParts(fewest, most, 0)
        self._unit = f"parts of {self._step_npus} NPU{'s' * (self._step_npus > 1)}"
        """Unit named in decisions, since a replica of Serve is a group."""
        size = ReplicaSize(self._step_npus, decode.ub_memory_mib * self._step_ranks)
        self._sizes = {**sizes_of(config), DECODE: size}
        # Another node does not help a group, which grows only on its own node.
        self._room = NodeRoom(replace(scaler, nodes="fixed"), self._sizes, lambda _pool, _now: None)
        self._replicas: int | None = None
        """Groups requested from Serve, as of the last poll."""
        self._ordered: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        """Intended parts of each group: as commanded (`_ordered`), and as reported at the last poll (`_shown`)."""
        self._manual: set[str] = set()
        """Groups that keep their size until the scaler's next target: it may be outside of the scaler's bounds."""

    @property
    def target(self) -> int:
        """Parts requested for all groups together."""
        return self._rules.target

    def see(self, snapshot: ClusterSnapshot) -> PoolTarget | None:
        """Compare the groups with the commands.

        The target starts at the parts of the existing groups, grows by each group that is added to Serve's target, and
        shrinks by the share of each group that is removed from it.

        Returns: the new target if a group was resized manually, or could not grow and keeps its size.
        """
        seen = snapshot.deployments.get(DECODE)
        if seen is None:
            return None
        groups, before = self._serving(snapshot), self.target
        if self._replicas is None:
            self._rules.target = sum(one.wanted for one in groups) + (seen.target - len(groups)) * self._first
        elif self._replicas != seen.target:
            low, high = self._rules.bounds(seen.target)
            more = (seen.target - self._replicas) * self._first
            there = before + more if more > 0 else before * seen.target // self._replicas
            self._rules.target = min(high, max(low, there))
        self._replicas = seen.target
        past = [
            one.name
            for one in groups
            if one.name in self._shown and one.wanted not in (self._shown[one.name], self._ordered[one.name])
        ]
        self._shown = {one.name: one.wanted for one in groups}
        self._ordered = {name: self._ordered.get(name, parts) for name, parts in self._shown.items()}
        if not past:
            return None
        self._ordered |= {name: self._shown[name] for name in past}
        self._manual |= set(past)
        return self._settle(snapshot, f"{', '.join(past)}: resized past the board, or could not grow; held")

    def signals(self, whole: ScalingSignals, snapshot: ClusterSnapshot) -> ScalingSignals:
        """Signals with a part as the unit of decode: measurements of a rank are multiplied by a part's ranks."""
        groups = self._groups(snapshot)
        serving = self._serving(snapshot)
        per_group = sum(one.parts - one.leaving for one in serving) / len(serving) if serving else self._first
        bounds = self._rules.bounds(snapshot.deployments[DECODE].target)
        pools = tuple(
            in_parts(pool, per_group, self.target, groups, self._step_npus, bounds) if pool.pool == DECODE else pool
            for pool in whole.pools
        )
        growing = sum(one.growing for one in serving) * self._step_npus
        return structs.replace(whole, pools=pools, npus_free=max(0, whole.npus_free - growing))

    def granted(self, wanted: PoolTarget, snapshot: ClusterSnapshot) -> PoolTarget | None:
        """Set a scaler's target, reduced to what fits on the groups' nodes. Returns: see `NodeRoom.granted`."""
        self._manual.clear()
        counted = self._counted(snapshot)
        to = self._room.granted(wanted, counted)
        if to is None:
            return None
        groups = self._groups(snapshot)
        free = room_by_node(DECODE, self._sizes, counted.deployments, counted.nodes)
        places = {one.place for one in groups if one.place is not None}
        most = sum([one.wanted for one in groups]) + sum([free.get(place, 0) for place in places])
        target, reason = min(to.target, max(most, to.before)), to.reason
        if target < to.target:
            reason = f"{reason}; {target} fit on the nodes of its groups, where these grow"
        self._rules.target = target
        if target == to.before:
            return None
        return structs.replace(to, target=target, reason=f"{reason}; counted in {self._unit}")

    def due(self, snapshot: ClusterSnapshot) -> list[ResizeRankGroup]:
        """Resize commands to send now; a command that a group does not report yet is sent again.

        Groups that are still starting share the target, too. No command is due while there are more groups than
        requested from Serve, because which of them will end is not known yet.
        """
        sharing = [one for one in self._groups(snapshot) if one.wanted]
        if self._replicas is None or len(sharing) > self._replicas:
            return []
        counted = self._counted(snapshot)
        free = room_by_node(DECODE, self._sizes, counted.deployments, counted.nodes)
        kept = [one for one in sharing if one.name in self._manual]
        due = self._rules.due([one for one in sharing if one not in kept], free, sum(one.wanted for one in kept))
        self._ordered |= {one.name: one.parts for one in due}
        return [ResizeRankGroup(one.name, one.parts * self._step_ranks) for one in due]

    def refused(self, resize: ResizeRankGroup, reason: str, snapshot: ClusterSnapshot) -> PoolTarget:
        """A group refused a command. Returns: the target, set to what the groups have."""
        self._ordered[resize.group] = self._shown[resize.group]
        return self._settle(snapshot, f"{reason}; held")

    def _settle(self, snapshot: ClusterSnapshot, reason: str) -> PoolTarget:
        before, there = self.target, [one for one in self._groups(snapshot) if one.wanted]
        self._rules.target = sum(self._ordered.get(one.name, one.wanted) for one in there)
        return PoolTarget(DECODE, before, self.target, ScaleKind.HELD, f"{reason}; counted in {self._unit}")

    def _counted(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """The snapshot with the decode pool counted in parts: one replica per part of a group."""
        parts = as_replicas(self.target, self._groups(snapshot))
        return replace(snapshot, deployments={**snapshot.deployments, DECODE: parts})

    def _serving(self, snapshot: ClusterSnapshot) -> list[SizedInstance]:
        return [one for one in self._groups(snapshot) if one.parts and one.wanted]

    def _groups(self, snapshot: ClusterSnapshot) -> list[SizedInstance]:
        """All groups: serving ones, starting ones, and draining ones, whose `wanted` is 0; none before Serve knows the
        pool.
        """
        pool = snapshot.deployments.get(DECODE)
        replicas = () if pool is None else pool.replicas
        return [self._group(replica, snapshot.instances_of(replica.name)) for replica in replicas]

    def _group(self, replica: SeenReplica, ranks: Sequence[SeenMember]) -> SizedInstance:
        leaves = replica.phase is ReplicaPhase.DRAINING
        node = ranks[0].node if ranks else replica.node
        if not ranks:
            return SizedInstance(replica.name, node, 0, 0 if leaves else self._first)
        facts = next((one.facts for one in ranks if not one.facts.get("draining")), ranks[0].facts)
        size = int(facts["ranks"])
        wanted = 0 if leaves else int(facts.get("ranks_wanted", size))
        draining = max(0, len(ranks) - size) if wanted <= size else 0  # else new ranks that report first
        parts = ceil(size / self._step_ranks) + ceil(draining / self._step_ranks)
        return SizedInstance(str(facts["group"]), node, parts, ceil(wanted / self._step_ranks))

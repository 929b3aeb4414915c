"""Decode in parts: instances that grow and shrink while they serve, each counted as several replicas. Pure.

    target 11, two instances ── shared evenly ──► 6 and 5, within the bounds of one instance
    one change per instance at a time, which finishes; shrink before grow; grow as far as parts are free on its node

A part is `[autoscaler] decode_step_npus` NPUs: the last dies of an instance in virtual time, the last ranks of a group
live. The instance itself implements the change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ReplicaPhase, SeenDeployment, SeenReplica
from serving.values.signals import PoolSignals


@dataclass(frozen=True, slots=True)
class SizedInstance:
    """A decode instance, or a group of ranks, in parts.

    Args:
        place: node that it is on, and grows on; None while it has none.
        parts: current number, draining ones included.
        wanted: number after its current change; equal to `parts` if it does not change.
    """

    name: str
    place: NodeId | None
    parts: int
    wanted: int

    @property
    def growing(self) -> int:
        """Parts that have been started and do not serve yet."""
        return max(0, self.wanted - self.parts)

    @property
    def leaving(self) -> int:
        """Draining parts."""
        return max(0, self.parts - self.wanted)


@dataclass(frozen=True, slots=True)
class ResizeInstance:
    """Start a change: have `parts` instead of `before`."""

    name: str
    before: int
    parts: int


class DecodeParts:
    """Sizes of a pool's instances.

    Args:
        fewest, most: parts of one instance.
        target: parts of all instances together.
    """

    def __init__(self, fewest: int, most: int, target: int) -> None:
        self.fewest, self.most = fewest, most
        self.target = target

    def bounds(self, instances: int) -> tuple[int, int]:
        """Fewest and most parts of `instances` instances together."""
        return instances * self.fewest, instances * self.most

    def due(
        self, instances: Sequence[SizedInstance], free: Mapping[NodeId, int], kept: int = 0
    ) -> list[ResizeInstance]:
        """Changes to start now, in this order, which bring each instance closer to its share of the target.

        Args:
            instances: running instances that may change.
            free: number of free parts by node.
            kept: parts of the other instances.
        """
        if not instances:
            return []
        each, more = divmod(max(0, self.target - kept), len(instances))
        shares = [min(self.most, max(self.fewest, each + (at < more))) for at in range(len(instances))]
        left, due = dict(free), []
        for one, share in sorted(zip(instances, shares, strict=True), key=lambda pair: pair[1] - pair[0].parts):
            if one.wanted != one.parts or one.place is None:
                continue
            if share > one.parts:
                share = one.parts + min(share - one.parts, left.get(one.place, 0))
                left[one.place] = left.get(one.place, 0) - (share - one.parts)
            if share != one.parts:
                due.append(ResizeInstance(one.name, one.parts, share))
        return due


def as_replicas(target: int, instances: Iterable[SizedInstance]) -> SeenDeployment:
    """The pool for capacity checks: a replica for each part, starting ones included."""
    parts = [
        SeenReplica(f"{one.name} {phase.value} {number}", phase, one.place, None)
        for one in instances
        for phase, count in (
            (ReplicaPhase.SERVING, one.parts - one.leaving),
            (ReplicaPhase.STARTING, one.growing),
            (ReplicaPhase.DRAINING, one.leaving),
        )
        for number in range(count)
    ]
    return SeenDeployment(target, tuple(parts))


def in_parts(
    whole: PoolSignals,
    per_instance: float,
    target: int,
    instances: Sequence[SizedInstance],
    step_npus: int,
    bounds: tuple[int, int],
) -> PoolSignals:
    """The signals of a pool whose unit is a part: the capacity of an instance is divided among its parts.

    Args:
        whole: in instances of `per_instance` parts.
        step_npus: NPUs of a part.
    """
    leaving = sum(one.leaving for one in instances)
    running = sum(one.parts for one in instances) - leaving
    return structs.replace(
        whole,
        target=target,
        running=running,
        starting=max(0, target - running),
        draining=leaving,
        npus_per_instance=step_npus,
        tokens_per_s=whole.tokens_per_s / per_instance,
        max_sequences=whole.max_sequences / per_instance,
        crowd=whole.crowd / per_instance,
        seats=int(whole.seats / per_instance),
        low=bounds[0],
        high=bounds[1],
    )

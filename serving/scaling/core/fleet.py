"""Rules for carrying out a scaler's targets: the cut to what fits, with its reason, and which replicas leave. Pure.

    scaler -> PoolTarget -> `granted` -> `order` -> PoolOrder: the driver carries it out, and then knows `with_target`

The live board and virtual time both go this way; each reports its replicas and their nodes in a `ClusterSnapshot`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.decision import PoolTarget
from serving.scaling.core.node_room import NodeRoom


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """A target to carry out.

    Args:
        to: the reason is complete.
        leaving: names of the replicas that leave; those that do not serve yet leave before them.
    """

    to: PoolTarget
    leaving: tuple[str, ...]


def in_order(targets: Sequence[PoolTarget]) -> list[PoolTarget]:
    """Targets in the order in which they are carried out: first what makes room, then what takes it."""
    return sorted(targets, key=lambda one: one.target - one.before)


def granted(wanted: PoolTarget, sight: ClusterSnapshot, room: NodeRoom) -> PoolTarget | None:
    """A scaler's target, cut to what fits; the reason then says so.

    Returns: None if nothing changes, or the pool has another target by now than the scaler saw.
    """
    seen = sight.deployments.get(wanted.pool)
    if seen is None or seen.target != wanted.before:
        return None
    target = wanted.target
    if target > seen.target:
        target = max(seen.target, min(target, room.most(wanted.pool, sight)))
    if target == seen.target:
        return None
    cut = target != wanted.target
    fits = f"; {wanted.target} wanted, {target} fit: {room.shortage(wanted.pool, sight)}" if cut else ""
    reason = f"{wanted.reason}{fits}{room.wait_of(wanted.pool, target, sight)}"
    return structs.replace(wanted, target=target, reason=reason)


def order(to: PoolTarget, sight: ClusterSnapshot, room: NodeRoom) -> PoolOrder:
    """A target with the replicas that leave; the reason also names the hosts that are empty then."""
    if not to.changed:
        return PoolOrder(to, ())
    leaving, emptied = room.leaving(to.pool, to.target, sight)
    return PoolOrder(structs.replace(to, reason=f"{to.reason}{emptied}"), leaving)


def with_target(sight: ClusterSnapshot, pool: str, target: int) -> ClusterSnapshot:
    """The snapshot once a pool's target has been set."""
    seen = replace(sight.deployments[pool], target=target)
    return replace(sight, deployments={**sight.deployments, pool: seen})

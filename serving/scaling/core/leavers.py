"""Which replicas leave when a pool becomes smaller. Pure.

n0: decode, decode, decode, prefill     n1: decode, decode     n2 (Ray's head): decode
hosts can be given back:    one leaves: of n1, which has least      two: n1 is empty
they cannot:                one leaves: of n0, which has most       two: of n0 and n1
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from serving.ids import NodeId


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica that has its place.

    Args:
        since: when it was asked for; of equals the newest leaves.
    """

    pool: str
    name: str
    host: NodeId
    npus: int
    since: float = 0.0


def leavers(pool: str, count: int, placed: Iterable[Placed], kept: Collection[NodeId] = ()) -> tuple[str, ...]:
    """Names of the replicas of a pool that leave, at most `count`, where hosts can be given back.

    As many hosts as possible become empty of everything; then as many as possible keep memory servers only; what is
    left to go goes from the host with the fewest NPUs in use.

    Args:
        placed: replicas of all pools.
        kept: hosts that nobody takes back, as Ray's head: replicas leave them last.
    """
    hosts: dict[NodeId, _Host] = {}
    for one in placed:
        host = hosts.setdefault(one.host, _Host(one.host, kept=one.host in kept))
        if one.pool == pool:
            host.own.append(one)
        else:
            host.npus_beside += one.npus
            host.others += 1
    concerned = [host for host in hosts.values() if host.own]
    gone: list[Placed] = []
    for host in sorted(concerned, key=_Host.emptied_first):
        if host.can_be_left and len(host.own) <= count - len(gone):
            gone += host.own
            host.own = []
    while len(gone) < count and (left := [host for host in concerned if host.own]):
        host = min(left, key=_Host.used_least)
        newest = max(host.own, key=lambda one: (one.since, one.name))
        host.own.remove(newest)
        gone.append(newest)
    return tuple(one.name for one in gone)


def leavers_of_the_fullest(pool: str, count: int, placed: Iterable[Placed]) -> tuple[str, ...]:
    """Names of the replicas of a pool that leave, at most `count`, where no host can be given back.

    Each leaves the host that has most of the pool, so that the loss of a host costs as few of its replicas as possible.

    Args:
        placed: replicas of all pools.
    """
    own = [one for one in placed if one.pool == pool]
    gone: list[Placed] = []
    while own and len(gone) < count:
        crowds = Counter(one.host for one in own)
        leaves = max(own, key=lambda one: (crowds[one.host], one.since, one.name))
        own.remove(leaves)
        gone.append(leaves)
    return tuple(one.name for one in gone)


def emptied(names: Collection[str], placed: Sequence[Placed], kept: Collection[NodeId] = ()) -> tuple[NodeId, ...]:
    """Hosts that have nothing of ours once these replicas have left, in order of their ids."""
    before = {one.host for one in placed}
    after = {one.host for one in placed if one.name not in names}
    return tuple(sorted(before - after - set(kept)))


class _Host:
    """A host, as one pool sees it.

    Args:
        kept: nobody takes it back.
    """

    def __init__(self, host: NodeId, *, kept: bool) -> None:
        self.host = host
        self.kept = kept
        self.own: list[Placed] = []
        self.others = self.npus_beside = 0

    @property
    def can_be_left(self) -> bool:
        """Whether no NPU is in use here once the pool's replicas have left, and somebody takes it back then."""
        return not self.kept and not self.npus_beside

    def emptied_first(self) -> tuple[bool, int, NodeId]:
        """Order in which hosts are left: without memory servers, then few replicas, so that most hosts are emptied."""
        return self.others > 0, len(self.own), self.host

    def used_least(self) -> tuple[bool, int, int, NodeId]:
        """Order in which hosts give single replicas."""
        npus = self.npus_beside + sum(one.npus for one in self.own)
        return self.kept, npus, self.others + len(self.own), self.host

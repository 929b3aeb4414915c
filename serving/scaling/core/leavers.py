"""Which replicas are removed when a pool shrinks. Pure.

n0: decode, decode, decode, prefill     n1: decode, decode     n2 (Ray's head): decode
hosts can be released:      remove one: from n1, which has fewest   two: both from n1, which is then empty
hosts cannot:               remove one: from n0, which has most     two: one from n0, one from n1
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from serving.ids import NodeId


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica on a host.

    Args:
        since: when it was requested; among equal replicas the latest is removed.
    """

    pool: str
    name: str
    host: NodeId
    npus: int
    since: float = 0.0


def leavers(pool: str, count: int, placed: Iterable[Placed], kept: Collection[NodeId] = ()) -> tuple[str, ...]:
    """Names of the replicas of a pool to remove, at most `count`, if hosts can be released.

    As many hosts as possible become empty; then as many as possible keep only memory servers; the rest is removed from
    the hosts with the fewest NPUs in use.

    Args:
        placed: replicas of all pools.
        kept: hosts that cannot be released, such as Ray's head: their replicas are removed last.
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
    """Names of the replicas of a pool to remove, at most `count`, if no host can be released.

    Each is removed from the host with most replicas of the pool, so that the loss of a host costs as few as possible.

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
    """Hosts without any replica once these have been removed, in order of their ids."""
    before = {one.host for one in placed}
    after = {one.host for one in placed if one.name not in names}
    return tuple(sorted(before - after - set(kept)))


class _Host:
    """A host with its replicas of one pool and of all others.

    Args:
        kept: whether the host cannot be released.
    """

    def __init__(self, host: NodeId, *, kept: bool) -> None:
        self.host = host
        self.kept = kept
        self.own: list[Placed] = []
        self.others = self.npus_beside = 0

    @property
    def can_be_left(self) -> bool:
        """Whether the host can be released and uses no NPU once the pool's replicas have been removed."""
        return not self.kept and not self.npus_beside

    def emptied_first(self) -> tuple[bool, int, NodeId]:
        """Sort key for emptying hosts: without memory servers first, then fewest replicas, to empty most hosts."""
        return self.others > 0, len(self.own), self.host

    def used_least(self) -> tuple[bool, int, int, NodeId]:
        """Sort key of the hosts from which single replicas are removed."""
        npus = self.npus_beside + sum(one.npus for one in self.own)
        return self.kept, npus, self.others + len(self.own), self.host

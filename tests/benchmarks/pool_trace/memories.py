"""The same memory in two arrangements: one pool that every instance reaches, or a part for each instance alone.

Both are made of the memory servers' real ledger. A block is one page, whatever its real size: only counts matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.ids import BlockHash
from serving.kvpool.core.entry import GrantStatus, Space
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
from serving.kvpool.core.ring import HashRing, RingServer

PAGE_BYTES = 4096
SLAB_PAGES = 16
SPACE = Space("default", "trace")


@dataclass(frozen=True, slots=True)
class Rules:
    """By which every memory server keeps and drops; the defaults are those of `[kvcache]`."""

    eviction: str = "lru"
    high_water: float = 0.95
    low_water: float = 0.85


class Memory(Protocol):
    """What the simulation asks of it."""

    def fetch(self, instance: int, blocks: Sequence[BlockHash], now: float) -> int:
        """Leading blocks that this instance can have. Counts as a use."""

    def store(self, instance: int, blocks: Sequence[BlockHash], now: float) -> None:
        """This instance has computed these."""


class InfiniteMemory:
    """One pool that never forgets: what only the delay of computing costs."""

    def __init__(self) -> None:
        self._known: set[BlockHash] = set()

    def fetch(self, instance: int, blocks: Sequence[BlockHash], now: float) -> int:
        """See `Memory`."""
        return next((i for i, one in enumerate(blocks) if one not in self._known), len(blocks))

    def store(self, instance: int, blocks: Sequence[BlockHash], now: float) -> None:
        """See `Memory`."""
        self._known.update(blocks)


class PooledMemory:
    """Memory servers in one ring."""

    def __init__(self, servers: int, blocks: int, rules: Rules) -> None:
        """
        Args:
            blocks: that all servers hold together.
        """
        self._servers = {f"server-{n}": manager(blocks // servers, rules) for n in range(servers)}
        self._ring = HashRing([RingServer(name, 1.0) for name in self._servers])

    def fetch(self, instance: int, blocks: Sequence[BlockHash], now: float) -> int:
        """See `Memory`. Asks each server once for all of its blocks, as a pool client does."""
        found: set[BlockHash] = set()
        for name, hashes in self._by_server(blocks).items():
            found.update(_look(self._servers[name], hashes, instance, now))
        return next((i for i, one in enumerate(blocks) if one not in found), len(blocks))

    def store(self, instance: int, blocks: Sequence[BlockHash], now: float) -> None:
        """See `Memory`."""
        for name, hashes in self._by_server(blocks).items():
            _put(self._servers[name], hashes, instance, now)

    def _by_server(self, blocks: Sequence[BlockHash]) -> dict[str, list[BlockHash]]:
        # The servers never change here, so that a block can only be on its primary.
        parts: dict[str, list[BlockHash]] = {}
        for one in blocks:
            parts.setdefault(self._ring.owners(one)[0], []).append(one)
        return parts


class LocalMemory:
    """Memory servers that serve one instance each."""

    def __init__(self, instances: int, blocks: int, rules: Rules) -> None:
        """
        Args:
            blocks: that all instances hold together.
        """
        self._servers = [manager(blocks // instances, rules) for _ in range(instances)]

    def fetch(self, instance: int, blocks: Sequence[BlockHash], now: float) -> int:
        """See `Memory`."""
        found = _look(self._servers[instance], blocks, instance, now)
        return next((i for i, one in enumerate(blocks) if one not in found), len(blocks))

    def store(self, instance: int, blocks: Sequence[BlockHash], now: float) -> None:
        """See `Memory`."""
        _put(self._servers[instance], blocks, instance, now)


def manager(blocks: int, rules: Rules) -> MemoryManager:
    """A ledger with room for so many blocks, at least one."""
    slab = SLAB_PAGES if blocks >= SLAB_PAGES else 1
    # Whole slabs: the allocator gives out nothing smaller to a size class.
    pages = max(slab, blocks // slab * slab)
    settings = ManagerSettings(
        capacity_bytes=pages * PAGE_BYTES,
        slab_bytes=slab * PAGE_BYTES,
        high_water=rules.high_water,
        low_water=rules.low_water,
        eviction=rules.eviction,
    )
    return MemoryManager(settings)


def _look(server: MemoryManager, hashes: Sequence[BlockHash], client: int, now: float) -> set[BlockHash]:
    """Looks up and gives the leases back: copying takes no time here."""
    found = [one for one in server.lookup(SPACE, hashes, client, now) if one is not None]
    server.release([one.version for one in found], client, now)
    return {one.hash for one in found}


def _put(server: MemoryManager, hashes: Sequence[BlockHash], client: int, now: float) -> None:
    grants = server.reserve(SPACE, [(one, PAGE_BYTES) for one in hashes], client, now)
    # The last block of a chain first, as `commit` asks for: what was committed last is evicted last.
    for grant in reversed(grants):
        if grant.status is GrantStatus.GRANTED:
            server.commit(grant.version, 0, client, now)
    server.tick(now)

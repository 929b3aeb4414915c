"""Input and output of the KV-cache pool in virtual time: plain values, without behaviour."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from serving.kvpool.core.prefix_read import LoadsAhead
from serving.kvpool.core.shelf import FoundCopy


class BlockHold:
    """Blocks that a lookup found, which stay where they are until they are released or `until` has come."""

    __slots__ = ("ahead", "blocks", "read", "servers", "until")

    def __init__(self, blocks: list[FoundCopy], until: float) -> None:
        """
        Args:
            blocks: the last block first; without those that were read; emptied when it ends.
        """
        self.blocks = blocks
        self.servers = [server for _shelf, _entry, server in blocks]
        self.until = until
        self.read = 0
        """Leading blocks that were read."""
        self.ahead: LoadsAhead | None = None
        """Its loads from SSD; None = there were none."""

    @property
    def in_memory(self) -> int:
        """Leading blocks, of those that were not read, that are in memory now."""
        count = 0
        for _shelf, entry, _server in reversed(self.blocks):
            if not entry.in_dram:
                break
            count += 1
        return count


class LongestPrefix(NamedTuple):
    """The longest prefix that the pool has.

    Attributes:
        blocks: leading blocks found = `from_memory` + `from_ssd`.
        handle: for `VirtualPool.release`, once the bytes have arrived.
        waited_s: how long the lookup waited for servers that do not answer.
    """

    blocks: int
    from_memory: int
    from_ssd: int
    handle: BlockHold
    waited_s: float = 0.0

    @property
    def servers(self) -> dict[str, int]:
        """Blocks by memory server, in order of the first block of each: which links the bytes take."""
        return dict(Counter(reversed(self.handle.servers)))


@dataclass(slots=True)
class PoolCounters:
    """Events since the start; they only grow.

    Attributes:
        lookups: prefixes looked up. blocks_asked: blocks of them.
        blocks_memory, blocks_ssd: leading blocks found, by tier.
        stored, present, dropped: outcomes of stores, in blocks.
        evicted: copies that left memory or SSD for lack of room, whether or not the other tier kept one.
        spilled, promoted: copies written to SSD, and loaded from there.
        moved, moved_bytes: entries handed to another server. stored_bytes: of stored blocks.
        holds_expired: lookups whose blocks were not released in time.
    """

    lookups: int = 0
    blocks_asked: int = 0
    blocks_memory: int = 0
    blocks_ssd: int = 0
    stored: int = 0
    present: int = 0
    dropped: int = 0
    evicted: int = 0
    spilled: int = 0
    promoted: int = 0
    moved: int = 0
    moved_bytes: int = 0
    stored_bytes: int = 0
    holds_expired: int = 0

    def __add__(self, other: Self) -> "PoolCounters":
        return PoolCounters(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def hit_rate(self) -> float:
        """Share of the blocks looked up that were found, 0 to 1."""
        return (self.blocks_memory + self.blocks_ssd) / max(1, self.blocks_asked)


class ServerFacts(NamedTuple):
    """One memory server at one moment.

    Attributes:
        weight: share of its places in the ring, 0 = it drains.
        up: it answers; one that is lost stays in the ring for some seconds.
        left: entries that another server should have.
    """

    name: str
    up: bool
    weight: float
    entries: int
    memory_bytes: int
    memory_capacity_bytes: int
    ssd_bytes: int
    ssd_capacity_bytes: int
    left: int

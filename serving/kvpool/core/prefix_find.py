"""One round of lookups: the same request to all servers that may hold a block; the result is the longest prefix."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.ids import BlockHash
from serving.kvpool.core.entry import EntryTier, Found, Space
from serving.kvpool.core.messages import Looked, Lookup, ReleaseLeases
from serving.kvpool.core.operation import (
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolPost,
    PoolReadDone,
    PoolWritten,
    undo,
)
from serving.kvpool.core.ring import HashRing
from serving.values.pool_outcome import MissReason

EVERYBODY = 2
"""In a pool of so many servers each is the owner or the fallback of every block: the ring is not needed."""


LOOKUP_SHARE = 0.5
"""Part of the time for a fetch that its lookup may take, so that one silent server does not use up all of it."""


def lookup_deadline(start: float, get_timeout_s: float) -> float:
    """When the lookup of a fetch ends at the latest."""
    return start + LOOKUP_SHARE * get_timeout_s


def servers_to_ask(ring: HashRing, servers: Collection[str], hashes: Sequence[BlockHash]) -> dict[str, Sequence[int]]:
    """Servers that a lookup queries, each with the indices of the hashes to look up there.

    Args:
        servers: names of all servers of the pool.
    """
    if len(servers) <= EVERYBODY:
        return dict.fromkeys(servers, range(len(hashes)))
    asked: dict[str, list[int]] = defaultdict(list)
    for index, block in enumerate(hashes):
        for name in ring.readers(block):
            asked[name].append(index)
    return dict(asked)


def is_better_copy(in_dram: bool, rival_in_dram: bool, *, likelier: bool) -> bool:
    """Whether to read a copy of a block rather than another one: memory before SSD, then the likelier holder's.

    Args:
        likelier: its server precedes the rival's among the block's readers.
    """
    return in_dram if in_dram != rival_in_dram else likelier


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """Result of a lookup of consecutive blocks.

    Args:
        found: entries of the leading blocks, without a gap.
        servers: the server of each of them.
        lost_blocks: blocks behind them that were found but cannot be used, or could not be looked up, because `reason`
            made the gap; 0 if the pool just did not have the next block.
    """

    found: tuple[Found, ...] = ()
    servers: tuple[str, ...] = ()
    lost_blocks: int = 0
    reason: MissReason | None = None

    def split(self, indices: Sequence[int]) -> "tuple[FoundPrefix, FoundPrefix]":
        """These blocks of it, in this order, and the rest; each is to be read or released on its own."""
        chosen = set(indices)
        return self._only(indices), self._only([one for one in range(len(self.found)) if one not in chosen])

    def _only(self, indices: Sequence[int]) -> "FoundPrefix":
        found = tuple([self.found[index] for index in indices])
        servers = tuple([self.servers[index] for index in indices])
        return FoundPrefix(found, servers, self.lost_blocks, self.reason)


class PrefixFind:
    """One lookup. `result` is set, and its blocks are leased, when every server has responded or failed.

    Args:
        ring: names the servers that may hold a block.
        servers: names of all of them.
        hashes: consecutive blocks, at least one.
        lease_s: how long found blocks stay in place.
        until: when responses are due.
    """

    def __init__(
        self,
        ring: HashRing,
        servers: Collection[str],
        space: Space,
        hashes: Sequence[BlockHash],
        lease_s: float,
        until: float,
    ) -> None:
        self.result: FoundPrefix | None = None
        self._ring = ring
        self._servers = servers
        self._space = space
        self._hashes = hashes
        self._lease_s = lease_s
        self._until = until
        self._asked: dict[str, Sequence[int]] = {}
        self._answers: list[tuple[str, Sequence[int], tuple[Found | None, ...]]] = []
        self._failed: dict[str, MissReason] = {}
        self._best: list[Found | None] = [None] * len(hashes)
        self._who: list[str | None] = [None] * len(hashes)

    def start(self, now: float) -> Sequence[PoolEffect]:
        """Send the lookups."""
        del now
        hashes = self._hashes
        everything = tuple(hashes)
        asked = servers_to_ask(self._ring, self._servers, hashes)
        self._asked = dict(asked)
        if not asked:
            return self._conclude()
        return [
            PoolAsk(
                server,
                Lookup(
                    self._space,
                    everything if len(indices) == len(hashes) else tuple([hashes[index] for index in indices]),
                    self._lease_s,
                ),
                self._until,
            )
            for server, indices in asked.items()
        ]

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Take a response or a failure; the last one completes the result.

        Returns: releases of blocks that are not used.
        """
        del now
        if isinstance(event, PoolReadDone | PoolWritten):
            return []  # nothing is copied
        server = event.server
        indices = self._asked.pop(server, None)
        if indices is None:
            return undo(event, self._until, self._failed)
        effects: list[PoolEffect] = []
        if not isinstance(event, PoolAnswer):
            self._failed[server] = event.reason
        elif isinstance(event.message, Looked) and len(event.message.found) == len(indices):
            self._compare(server, indices, event.message.found)
            self._answers.append((server, indices, event.message.found))
        else:
            self._failed[server] = MissReason.ERROR
            effects.append(PoolClose(server))
        if not self._asked:
            effects += self._conclude()
        return effects

    def _compare(self, server: str, indices: Sequence[int], found: Sequence[Found | None]) -> None:
        """For each hash keeps the copy to read: memory before SSD, then the likelier holder."""
        if not self._answers and len(indices) == len(self._best):  # as most often: there is nothing to compare with
            self._best = [*found]
            self._who = [None if item is None else server for item in found]
            return
        best, who = self._best, self._who
        for index, item in zip(indices, found, strict=True):
            if item is None:
                continue
            other = who[index]
            if other is None or self._better(server, item, other, index):
                best[index] = item
                who[index] = server

    def _better(self, server: str, item: Found, other: str, index: int) -> bool:
        rival = self._best[index]
        readers = self._ring.readers(self._hashes[index])
        likelier = server in readers and (other not in readers or readers.index(server) < readers.index(other))
        return is_better_copy(
            item.tier is EntryTier.DRAM, rival is not None and rival.tier is EntryTier.DRAM, likelier=likelier
        )

    def _conclude(self) -> list[PoolEffect]:
        best, who = self._best, self._who
        end = best.index(None) if None in best else len(best)
        found = tuple([item for item in best[:end] if item is not None])
        servers = tuple([server for server in who[:end] if server is not None])
        self.result = FoundPrefix(found, servers, *self._lost(end))
        effects: list[PoolEffect] = []
        for server, indices, items in self._answers:
            surplus = [
                item.version
                for index, item in zip(indices, items, strict=True)
                if item is not None and (index >= end or who[index] != server)
            ]
            if surplus:
                effects.append(PoolPost(server, ReleaseLeases(tuple(surplus)), self._until))
        return effects

    def _lost(self, end: int) -> tuple[int, MissReason | None]:
        if not self._failed or end == len(self._best):
            return 0, None
        readers = self._ring.readers
        reason = next((self._failed[name] for name in readers(self._hashes[end]) if name in self._failed), None)
        if reason is None:
            return 0, None
        lost = sum(
            self._best[index] is not None or not self._failed.keys().isdisjoint(readers(self._hashes[index]))
            for index in range(end, len(self._best))
        )
        return lost, reason

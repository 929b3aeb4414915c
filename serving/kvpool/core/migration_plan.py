"""Plan of migration, live and in virtual time: which entries move where, in which order, and when rounds take place."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space
from serving.kvpool.core.prefix_read import SSD_GROUP_SHARE
from serving.kvpool.core.ring import HashRing
from serving.values.pool_view import PoolView

BATCH_BYTES = 4 << 20
BATCH_ENTRIES = 64
BYTES_PER_S = 256 << 20
"""Pace of one server: the same memory serves requests."""
ROUND_BYTES = 1 << 30
ROUND_S = 10.0
"""Longest round; after it the latest ring is used."""
RETRY_S = 3.0
"""Pause after a round that left entries behind: they were in use, or there was no room for them."""
DRAIN_RETRY_S = 0.2
"""The same, of a server that leaves."""
BATCH_S = 5.0
"""Longest move of one batch."""


def round_end(now: float, leave_by: float | None = None) -> float:
    """Deadline of a round that starts now.

    Args:
        leave_by: when the server ends; None = it stays.
    """
    return now + ROUND_S if leave_by is None else leave_by


def next_round(left: int, now: float, leave_by: float | None = None) -> float | None:
    """When the round after one that ends now starts.

    Args:
        left: entries that should be on other servers and are still on this one.
        leave_by: when the server ends; None = it stays.
    Returns: None if there is none: every entry is in its place, or the server has no time for another round.
    """
    again = now + (RETRY_S if leave_by is None else DRAIN_RETRY_S)
    return again if left and (leave_by is None or again < leave_by) else None


def batch_end(now: float, round_ends: float) -> float:
    """Deadline of a batch that starts now."""
    return min(now + BATCH_S, round_ends)


def next_batch(started: float, now: float, copied_bytes: int, bytes_per_s: float, round_ends: float) -> float:
    """When the batch after one that ended now starts, so that copying keeps its pace; not after the round's end."""
    return max(now, min(started + copied_bytes / bytes_per_s, round_ends))


class MovingEntry(Protocol):
    """Facts of an entry that moves."""

    @property
    def hash(self) -> BlockHash:
        """Hash of the block, or of the model's version."""
        ...

    @property
    def version(self) -> int:
        """Names this copy on its server."""
        ...

    @property
    def space(self) -> Space:
        """Space of its hash."""
        ...

    @property
    def kind(self) -> Kind:
        """Purpose of the entry."""
        ...

    @property
    def nbytes(self) -> int:
        """Size of the entry."""
        ...


_E = TypeVar("_E", bound=MovingEntry)


@dataclass(frozen=True, slots=True)
class MoveTargets:
    """Where a server's entries should be. Models stay where processes map them until their server leaves.

    Args:
        server: name of the server that has the entries.
        leaving: it hands over all entries.
        near: of a leaving server: another one of its node, where its models move; None = to their owners.
    """

    ring: HashRing
    server: str
    leaving: bool = False
    near: str | None = None

    def target(self, entry: MovingEntry) -> str | None:
        """The server that an entry should move to; None if it should stay, or no server can take it."""
        if entry.kind is Kind.MODEL:
            if not self.leaving:
                return None
            name = self.near or self.ring.primary(entry.hash)
        else:
            name = self.ring.primary(entry.hash)
        return None if name == self.server else name

    def strays(self, entries: Iterable[_E]) -> list[_E]:
        """Entries that should move."""
        if self.leaving:
            return [one for one in entries if self.target(one) is not None]
        primary, here, context = self.ring.primary, (self.server, None), Kind.CONTEXT  # fast: all entries of a server
        return [one for one in entries if one.kind is context and primary(one.hash) not in here]


def near_server(view: PoolView, server: str) -> str | None:
    """The first server, by name, that stays on the node of this one; None if there is none."""
    servers = {one.record.name: one for one in view.servers}
    node = servers[server].record.node
    near = [name for name, one in servers.items() if one.record.node == node and one.weight > 0]
    return min((name for name in near if name != server), default=None)


def planned_batches(
    strays: Sequence[_E], age: Callable[[_E], float], capacity_bytes: int, round_bytes: int = ROUND_BYTES
) -> Iterator[list[_E]]:
    """Batches of one space and kind, of bounded size (at least one entry), in order of their first entries.

    The most recently used entries move first, up to the round's limit. Entries on SSD are loaded into the memory that
    serves requests, so batches are small.

    Args:
        strays: entries that should be on other servers.
        age: returns the time since the last use of an entry, from any common origin.
        capacity_bytes: of the server's memory.
        round_bytes: at most this much in the round (at least one entry).
    """
    limit_bytes = min(BATCH_BYTES, int(capacity_bytes * SSD_GROUP_SHARE))
    open_batches: dict[tuple[Space, Kind], list[_E]] = defaultdict(list)
    sizes: dict[tuple[Space, Kind], int] = defaultdict(int)
    for entry in _first(strays, age, round_bytes):
        key = (entry.space, entry.kind)
        batch = open_batches[key]
        if batch and (len(batch) == BATCH_ENTRIES or sizes[key] + entry.nbytes > limit_bytes):
            yield batch
            open_batches[key], sizes[key] = [], 0
        open_batches[key].append(entry)
        sizes[key] += entry.nbytes
    yield from (batch for batch in open_batches.values() if batch)


def _first(strays: Sequence[_E], age: Callable[[_E], float], round_bytes: int) -> list[_E]:
    chosen: list[_E] = []
    nbytes = 0
    order = [(age(entry), entry.version, index) for index, entry in enumerate(strays)]
    heapq.heapify(order)
    while order:
        entry = strays[heapq.heappop(order)[2]]
        nbytes += entry.nbytes
        if chosen and nbytes > round_bytes:
            break
        chosen.append(entry)
    return chosen

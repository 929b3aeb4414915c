"""Moves entries to the server that owns them: after a server joined, and when one leaves.

A memory server runs this about itself, as an ordinary client: what it holds and another server owns is copied there,
then dropped at home. Readers find the entry all the time, since they ask both. Recently used entries go first; the pace
is bounded, since the same memory serves requests. Models stay where their readers are mapped, unless the server leaves.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from serving.errors import PoolError
from serving.kvpool.core.batch_move import BatchMove
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.messages import List, Listed, ListedEntry
from serving.kvpool.core.migration_plan import BYTES_PER_S, ROUND_BYTES, planned_batches
from serving.kvpool.core.ring import HashRing
from serving.kvpool.live.block_copies import BlockCopies, map_of
from serving.kvpool.live.client import PoolClient
from serving.kvpool.live.link_driver import LinkDriver
from serving.kvpool.live.server_link import ServerLink

logger = logging.getLogger(__name__)

PAGE_ENTRIES = 2048
BATCH_S = 5.0


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of a round of migration.

    Args:
        moved: entries that are with their owner now and not here any more.
        left: entries that should be elsewhere and still are here: in use, no room there, or the round was over.
        nbytes: bytes copied.
    """

    moved: int = 0
    left: int = 0
    nbytes: int = 0


class Migrator:
    """Settles the entries of one server. Not thread-safe; blocks while it works.

    Args:
        client: of the server's own process, scope as the pool's; for nothing else.
        server: name of the server whose entries it moves.
        bytes_per_s: pace.
        round_bytes: at most this much in one call of `settle` (at least one entry).
        pause: sleeps for so many seconds, called after each batch; if it returns true the round ends (as the `wait` of
            an event does that tells to stop).
    """

    def __init__(
        self,
        client: PoolClient,
        server: str,
        bytes_per_s: float = BYTES_PER_S,
        round_bytes: int = ROUND_BYTES,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._server = server
        self._bytes_per_s = bytes_per_s
        self._round_bytes = round_bytes
        self._pause = pause
        self._leaving = False

    def settle(self, ring: HashRing, deadline: float, leaving: bool = False) -> Settled:
        """One round: moves what `ring` gives to others.

        Args:
            ring: of the newest view; one without this server, or with weight 0 for it, gives everything to others.
            leaving: this server is about to end, so its models have to go too.
        Returns: what was done; `left` 0 = everything is where it should be.
        Effects: entries move to their owners.
        """
        self._client.placement.refresh()
        self._leaving = leaving or self._server in ring.draining
        home = self._client.placement.links.get(self._server)
        if home is None:
            return Settled(left=1)  # the view does not name this very server now: nobody knows what is left
        try:
            strays = self._strays(home, ring, deadline)
        except PoolError as error:
            logger.warning("the own entries cannot be listed: %s", error)
            return Settled(left=1)
        moved = nbytes = 0
        age: Callable[[ListedEntry], float] = attrgetter("last_use_age_s")
        for batch in planned_batches(strays, age, home.record.capacity_bytes, self._round_bytes):
            if time.monotonic() >= deadline:
                break
            start = time.monotonic()
            gone = self._move(home, batch, ring, min(deadline, start + BATCH_S))
            moved += len(gone)
            copied = sum(entry.nbytes for entry in gone)
            nbytes += copied
            rest_s = copied / self._bytes_per_s - (time.monotonic() - start)
            if self._pause(max(0.0, min(rest_s, deadline - time.monotonic()))):
                break
        return Settled(moved, len(strays) - moved, nbytes)

    def _strays(self, home: ServerLink, ring: HashRing, deadline: float) -> list[ListedEntry]:
        """All entries that should be elsewhere."""
        strays: list[ListedEntry] = []
        after = 0
        while True:
            page = home.ask(Listed, List(after, PAGE_ENTRIES), deadline).entries
            strays += [entry for entry in page if self._owner(entry, ring) is not None]
            if len(page) < PAGE_ENTRIES:
                return strays
            after = page[-1].version

    def _owner(self, entry: ListedEntry, ring: HashRing) -> str | None:
        """The server that an entry should move to; None if it should stay, or there is none."""
        name = ring.primary(entry.hash)
        if entry.kind is Kind.MODEL:
            name = self._near(name) if self._leaving else None
        return name if name != self._server and name in self._client.placement.links else None

    def _near(self, otherwise: str | None) -> str | None:
        """A staying server of the own node, since models are mapped by processes of a node; else `otherwise`."""
        servers = {one.record.name: one for one in self._client.placement.seen.servers}
        node = servers[self._server].record.node
        near = [name for name, one in servers.items() if one.record.node == node and one.weight > 0]
        return min((name for name in near if name != self._server), default=otherwise)

    def _move(
        self, home: ServerLink, batch: Sequence[ListedEntry], ring: HashRing, deadline: float
    ) -> list[ListedEntry]:
        """Moves entries of one space and kind. Returns those that are gone from here."""
        segments, links = self._client.segments, self._client.placement.links
        mapped = map_of(segments, home)
        if mapped is None:
            logger.warning("the own segment cannot be mapped; nothing is moved")
            return []
        move = BatchMove(self._server, batch, lambda entry: self._owner(entry, ring), deadline)

        def place(index: int) -> memoryview:
            _, at = move.ready[index]
            return mapped.view(at.offset, at.nbytes)

        LinkDriver(links, BlockCopies(segments, links, place)).drive(move)
        return move.result or []

"""Moves entries to the server that owns them: after a server joined, and when one leaves.

A memory server runs this about itself, as an ordinary client: what it holds and another server owns is copied there,
then dropped at home. Readers find the entry all the time, since they ask both. Recently used entries go first; the pace
is bounded, since the same memory serves requests. Models stay where their readers are mapped, unless the server leaves.
"""

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from serving.errors import PoolError
from serving.ids import BlockHash
from serving.kvpool.core.batch_write import PRESENT, STORED, NewEntry
from serving.kvpool.core.entry import Found, Kind, Space, Tier
from serving.kvpool.core.messages import (
    Committed,
    Drop,
    Entry,
    List,
    Listed,
    Looked,
    Lookup,
    Promote,
    Promoted,
    Release,
    Report,
)
from serving.kvpool.core.prefix_read import SSD_GROUP_SHARE
from serving.kvpool.core.ring import HashRing
from serving.kvpool.live.block_copies import map_of
from serving.kvpool.live.client import PoolClient
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

logger = logging.getLogger(__name__)

PAGE_ENTRIES = 2048
BATCH_BYTES = 4 << 20
BATCH_ENTRIES = 64
BATCH_S = 5.0
LEASE_S = 30.0
_SSD_WAIT_S = 5.0
_NOT_YET = "not yet written"


@dataclass(frozen=True, slots=True)
class Settled:
    """What a round of migration did.

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
        bytes_per_s: float = 256 << 20,
        round_bytes: int = 1 << 30,
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
        # Entries on SSD are loaded into the memory that serves requests, so few at a time.
        limit_bytes = min(BATCH_BYTES, int(home.record.capacity_bytes * SSD_GROUP_SHARE))
        for batch in _batches(self._first(strays), limit_bytes):
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

    def _strays(self, home: ServerLink, ring: HashRing, deadline: float) -> list[Entry]:
        """All entries that should be elsewhere."""
        strays: list[Entry] = []
        after = 0
        while True:
            page = home.ask(Listed, List(after, PAGE_ENTRIES), deadline).entries
            strays += [entry for entry in page if self._owner(entry, ring) is not None]
            if len(page) < PAGE_ENTRIES:
                return strays
            after = page[-1].version

    def _first(self, strays: Sequence[Entry]) -> list[Entry]:
        """Those that go in this round: the last used first, as many as the round may move."""
        chosen: list[Entry] = []
        nbytes = 0
        order = [(entry.last_use_age_s, entry.version, index) for index, entry in enumerate(strays)]
        heapq.heapify(order)
        while order:
            entry = strays[heapq.heappop(order)[2]]
            nbytes += entry.nbytes
            if chosen and nbytes > self._round_bytes:
                break
            chosen.append(entry)
        return chosen

    def _owner(self, entry: Entry, ring: HashRing) -> ServerLink | None:
        """The server that an entry should move to; None if it should stay, or there is none."""
        name = ring.primary(entry.hash)
        if entry.kind is Kind.MODEL:
            name = self._near(name) if self._leaving else None
        return self._client.placement.links.get(name) if name is not None and name != self._server else None

    def _near(self, otherwise: str | None) -> str | None:
        """A staying server of the own node, since models are mapped by processes of a node; else `otherwise`."""
        servers = {one.record.name: one for one in self._client.placement.seen.servers}
        node = servers[self._server].record.node
        near = [name for name, one in servers.items() if one.record.node == node and one.weight > 0]
        return min((name for name in near if name != self._server), default=otherwise)

    def _move(self, home: ServerLink, batch: Sequence[Entry], ring: HashRing, deadline: float) -> list[Entry]:
        """Moves entries of one space and kind. Returns those that are gone from here."""
        try:
            found = self._in_memory(home, batch, deadline)
            if not found:
                return []
            mapped = map_of(self._client.segments, home)
            if mapped is None:
                logger.warning("the own segment cannot be mapped; nothing is moved")
                return []
            ready = [(entry, found[entry.version]) for entry in batch if entry.version in found]
            owners = {entry.hash: self._owner(entry, ring) for entry, _ in ready}
            outcomes = self._client.write_entries(
                batch[0].space,
                batch[0].kind,
                [
                    NewEntry(e.hash, f.nbytes, None if (o := owners[e.hash]) is None else o.name, f.checksum)
                    for e, f in ready
                ],
                lambda index: mapped.view(ready[index][1].offset, ready[index][1].nbytes),
                deadline,
            )
            return self._drop(home, ready, self._confirmed(batch[0].space, ready, outcomes, owners, deadline), deadline)
        except PoolError as error:
            logger.warning("entries of this server cannot be moved now: %s", error)
            return []

    def _confirmed(
        self,
        space: Space,
        ready: Sequence[tuple[Entry, Found]],
        outcomes: Sequence[str],
        owners: Mapping[BlockHash, ServerLink | None],
        deadline: float,
    ) -> list[str]:
        """The outcomes, less what is said to be present at an owner and is not: somebody may only be writing it."""
        asked: dict[ServerLink, list[int]] = defaultdict(list)
        for index, ((entry, _), what) in enumerate(zip(ready, outcomes, strict=True)):
            owner = owners[entry.hash]
            if what == PRESENT and owner is not None:
                asked[owner].append(index)
        confirmed = list(outcomes)
        for owner, indices in asked.items():
            hashes = tuple(ready[index][0].hash for index in indices)
            found = owner.ask(Looked, Lookup(space, hashes, LEASE_S), deadline).found
            owner.post(Release(tuple(one.version for one in found if one is not None)), deadline)
            for index, one in zip(indices, found, strict=True):
                if one is None:
                    confirmed[index] = _NOT_YET
        return confirmed

    def _in_memory(self, home: ServerLink, batch: Sequence[Entry], deadline: float) -> dict[int, Found]:
        """The entries' places in memory, leased; those on SSD are loaded first."""
        hashes: tuple[BlockHash, ...] = tuple(entry.hash for entry in batch)
        looked = home.ask(Looked, Lookup(batch[0].space, hashes, LEASE_S), deadline).found
        found = {item.version: item for item in looked if item is not None}
        on_ssd = tuple(version for version, item in found.items() if item.tier is Tier.SSD)
        if on_ssd:
            wait_s = max(0.0, min(_SSD_WAIT_S, (deadline - time.monotonic()) / 2))
            loaded = home.ask(Promoted, Promote(on_ssd, wait_s), deadline).found
            for version, item in zip(on_ssd, loaded, strict=True):
                if item is None:
                    del found[version]
                else:
                    found[version] = item
        return found

    def _drop(
        self, home: ServerLink, ready: Sequence[tuple[Entry, Found]], outcomes: Sequence[str], deadline: float
    ) -> list[Entry]:
        wrong = [entry.version for (entry, _), what in zip(ready, outcomes, strict=True) if _is_wrong(what)]
        if wrong:
            home.post(Report(tuple(wrong)), deadline)
        safe = [entry for (entry, _), what in zip(ready, outcomes, strict=True) if what in (STORED, PRESENT)]
        home.post(Release(tuple(entry.version for entry, _ in ready)), deadline)
        if not safe:
            return []
        went = home.ask(Committed, Drop(tuple(entry.version for entry in safe)), deadline).ok
        return [entry for entry, good in zip(safe, went, strict=True) if good]


def _is_wrong(outcome: str) -> bool:
    return outcome == MissReason.CHECKSUM.value


def _batches(entries: Sequence[Entry], limit_bytes: int) -> Iterator[list[Entry]]:
    """Groups of one space and kind, of bounded size (at least one entry), in order of their first entries."""
    open_batches: dict[tuple[Space, Kind], list[Entry]] = defaultdict(list)
    sizes: dict[tuple[Space, Kind], int] = defaultdict(int)
    for entry in entries:
        key = (entry.space, entry.kind)
        batch = open_batches[key]
        if batch and (len(batch) == BATCH_ENTRIES or sizes[key] + entry.nbytes > limit_bytes):
            yield batch
            open_batches[key], sizes[key] = [], 0
        open_batches[key].append(entry)
        sizes[key] += entry.nbytes
    yield from (batch for batch in open_batches.values() if batch)

"""Moves entries to the server that owns them: after a server joined, and when one leaves.

A memory server runs this for itself, as an ordinary client. Entries that another server owns are copied there and then
dropped at home. Readers find the entry at any time, since they query both. Recently used entries move first; the pace
is bounded, since the same memory serves requests. Models stay where their readers are mapped, unless the server leaves.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from serving.errors import PoolError
from serving.ids import NodeId
from serving.kvpool.core.batch_move import BatchMove, MovedBatch
from serving.kvpool.core.messages import List, Listed, ListedEntry
from serving.kvpool.core.migration_plan import (
    BYTES_PER_S,
    ROUND_BYTES,
    ROUND_S,
    MoveTargets,
    batch_end,
    near_server,
    next_batch,
    next_round,
    planned_batches,
    round_end,
)
from serving.kvpool.core.ring import HashRing, ring_of
from serving.kvpool.live.block_copies import BlockCopies, map_of
from serving.kvpool.live.link_driver import LinkDriver
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_view import PoolView

logger = logging.getLogger(__name__)

PAGE_ENTRIES = 2048


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of a round of migration.

    Args:
        moved: entries that their owner has and this server no longer has.
        left: entries that should be on other servers but remain: in use, no room there, or the round was over.
        nbytes: bytes copied.
    """

    moved: int = 0
    left: int = 0
    nbytes: int = 0


class Migrator:
    """Moves the entries of one server to their owners. Not thread-safe; blocks while it works.

    Args:
        client: of the server's own process, with the pool's scope, used only by this object.
        server: name of the server whose entries it moves.
        bytes_per_s: pace.
        round_bytes: at most this much in one call of `settle` (at least one entry).
        pause: sleeps for so many seconds, called after each batch; the round ends if it returns true, like the `wait`
            of a stop event.
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

    def settle(self, ring: HashRing, deadline: float, leaving: bool = False) -> Settled:
        """One round: move the entries that `ring` gives to other servers.

        Args:
            ring: of the latest view; one without this server, or with weight 0 for it, gives all entries to others.
            leaving: this server is about to end, so its models move too.
        Returns: the result; `left` 0 = every entry is in its place.
        """
        placement = self._client.placement
        placement.refresh()
        home = placement.links.get(self._server)
        if home is None:
            return Settled(left=1)  # the view does not name this very server now: nobody knows what is left
        leaving = leaving or self._server in ring.draining
        targets = MoveTargets(ring, self._server, leaving, near_server(placement.seen, self._server))

        def owner(entry: ListedEntry) -> str | None:
            name = targets.target(entry)
            return name if name in placement.links else None

        try:
            strays = self._strays(home, owner, deadline)
        except PoolError as error:
            logger.warning("this server's entries cannot be listed: %s", error)
            return Settled(left=1)
        moved, left, nbytes = 0, len(strays), 0
        age: Callable[[ListedEntry], float] = attrgetter("last_use_age_s")
        for batch in planned_batches(strays, age, home.record.capacity_bytes, self._round_bytes):
            start = time.monotonic()
            if start >= deadline:
                break
            done = self._move(home, batch, owner, batch_end(start, deadline))
            moved += len(done.moved)
            left -= len(done.moved) + done.absent
            nbytes += done.copied_bytes
            now = time.monotonic()
            if self._pause(next_batch(start, now, done.copied_bytes, self._bytes_per_s, deadline) - now):
                break
        return Settled(moved, left, nbytes)

    def _strays(
        self, home: ServerLink, owner: Callable[[ListedEntry], str | None], deadline: float
    ) -> list[ListedEntry]:
        """All entries that should be on other servers."""
        strays: list[ListedEntry] = []
        after = 0
        while True:
            page = home.ask(Listed, List(after, PAGE_ENTRIES), deadline).entries
            strays += [entry for entry in page if owner(entry) is not None]
            if len(page) < PAGE_ENTRIES:
                return strays
            after = page[-1].version

    def _move(
        self,
        home: ServerLink,
        batch: Sequence[ListedEntry],
        owner: Callable[[ListedEntry], str | None],
        deadline: float,
    ) -> MovedBatch[ListedEntry]:
        """Moves entries of one space and kind."""
        segments, links = self._client.segments, self._client.placement.links
        mapped = map_of(segments, home)
        if mapped is None:
            logger.warning("this server's segment cannot be mapped; nothing is moved")
            return MovedBatch()
        move = BatchMove(self._server, batch, owner, deadline)

        def place(index: int) -> memoryview:
            _, at = move.ready[index]
            return mapped.view(at.offset, at.nbytes)

        LinkDriver(links, BlockCopies(segments, links, place)).drive(move)
        return move.result or MovedBatch()


# Moves a memory server's entries to their owners in a thread of its own, and empties the server before it leaves.

IDLE_S = 30.0
"""Period of rounds without a new view: clients with an old one may have written to this server."""


class CommitWorker:
    """One server's migration. Call `start` once, then optionally `drain`, then `stop`.

    Args:
        client: of the server's own process, used only by this object; closed by `stop`.
        server: name of the server.
        view: returns the latest view; called from this object's thread.
        node: the server's, if entries may move only within it (scope `node`).
        idle_s: how often it checks without a new view.
    """

    def __init__(
        self,
        client: PoolClient,
        server: str,
        view: Callable[[], PoolView],
        node: NodeId | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._client = client
        self._server = server
        self._view = view
        self._node = node
        self._idle_s = idle_s
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._migrator = Migrator(client, server, pause=self._stop.wait)
        self._seen = ""
        self.moved = Settled()
        """Entries and bytes moved so far, and how many the last round left behind."""
        self._thread = threading.Thread(target=self._settle_forever, name="kvpool-settler", daemon=True)

    def start(self) -> None:
        """Start a thread that moves entries whenever the view changes."""
        self._thread.start()

    def view_changed(self) -> None:
        """Take a new view; if the pool changed, start a round soon."""
        if self._view().version != self._seen:
            self._wake.set()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def drain(self, deadline: float) -> int | None:
        """Hand all entries to other servers, until the deadline (of `time.monotonic`) or until no server can take any.

        Ends the thread first.

        Returns: entries that are still on this server; None if no other server can take them.
        """
        self._end_thread()
        self._stop.clear()
        while self._has_successors(view := self._view()):
            # The view may still give this server a share: then nobody has heard yet that it leaves.
            others = replace(view, servers=tuple(one for one in view.servers if one.record.name != self._server))
            ends = round_end(time.monotonic(), deadline)
            settled = self._migrator.settle(ring_of(others, self._node), ends, leaving=True)
            self._count(settled)
            now = time.monotonic()
            again = next_round(settled.left, now, deadline)
            if again is None:
                return settled.left
            time.sleep(again - now)
        return None

    def stop(self) -> None:
        """End the thread and the connections. Twice is allowed."""
        self._end_thread()
        self._client.close()

    def _end_thread(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(ROUND_S)

    def _settle_forever(self) -> None:
        pause_s = self._idle_s
        while not self._stop.is_set():
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            view = self._view()
            self._seen = view.version
            pause_s = self._idle_s
            if not self._has_successors(view):
                continue
            try:
                settled = self._migrator.settle(ring_of(view, self._node), round_end(time.monotonic()))
            except Exception:
                logger.exception("a round of migration failed unexpectedly; trying again")
                settled = Settled(left=1)
            self._count(settled)
            now = time.monotonic()
            again = next_round(settled.left, now)
            pause_s = self._idle_s if again is None else again - now

    def _count(self, settled: Settled) -> None:
        before = self.moved
        self.moved = Settled(before.moved + settled.moved, settled.left, before.nbytes + settled.nbytes)

    def _has_successors(self, view: PoolView) -> bool:
        others = [one.record for one in view.servers if one.record.name != self._server and one.weight > 0]
        return any(self._node in (None, record.node) for record in others)

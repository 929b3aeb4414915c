"""Moves a memory server's entries to their owners in a thread of its own, and empties the server before it leaves."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from serving.ids import NodeId
from serving.kvpool.core.migration_plan import ROUND_S, next_round, round_end
from serving.kvpool.core.ring import ring_of
from serving.kvpool.live.client import PoolClient
from serving.kvpool.live.migration import Migrator, Settled
from serving.values.pool_view import PoolView

logger = logging.getLogger(__name__)

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
        self._moved = Settled()
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

    @property
    def moved(self) -> Settled:
        """Entries and bytes moved so far, and how many the last round left behind."""
        return self._moved

    def drain(self, deadline: float) -> int | None:
        """Hand all entries to other servers, until the deadline (of `time.monotonic`) or until no server can take any.

        Ends the thread first.

        Returns: entries that are still on this server; None if no other server can take them.
        """
        self._end_thread()
        self._stop.clear()
        while self._has_heirs(view := self._view()):
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
            if not self._has_heirs(view):
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
        before = self._moved
        self._moved = Settled(before.moved + settled.moved, settled.left, before.nbytes + settled.nbytes)

    def _has_heirs(self, view: PoolView) -> bool:
        others = [one.record for one in view.servers if one.record.name != self._server and one.weight > 0]
        return any(self._node in (None, record.node) for record in others)

"""The server that owns a block, and the links to all servers of the latest view."""

import time
from collections.abc import Callable
from typing import Literal

from serving.ids import BlockHash, NodeId
from serving.kvpool.core.ring import HashRing, ring_of
from serving.kvpool.live.segments import Segments
from serving.kvpool.live.server_link import PoolGreeting, ServerLink
from serving.values.pool_view import EMPTY_VIEW, PoolView, ServerRecord

Scope = Literal["pool", "node"]
_Address = tuple[str, int, str]


class Placement:
    """The ring and one link per server. Not thread-safe.

    Args:
        view: returns the latest view; called at the start of every operation.
        scope: `node` = only servers of `hello.node` count.
        segments: drops segments that the view no longer names.
    """

    def __init__(self, view: Callable[[], PoolView], scope: Scope, hello: PoolGreeting, segments: Segments) -> None:
        self._view = view
        self._node: NodeId | None = hello.node if scope == "node" else None
        self._hello = hello
        self._segments = segments
        self._seen = EMPTY_VIEW
        self._ring = ring_of(EMPTY_VIEW)
        self._links: dict[str, ServerLink] = {}

    @property
    def ring(self) -> HashRing:
        """The ring of the view last seen."""
        return self._ring

    @property
    def links(self) -> dict[str, ServerLink]:
        """Links by server name, of the view last seen. Not to be changed."""
        return self._links

    @property
    def seen(self) -> PoolView:
        """The view last seen."""
        return self._seen

    def refresh(self) -> None:
        """Adopt the latest view.

        Links to servers that left, or were replaced by another incarnation, end together with their pauses.
        """
        view = self._view()
        if view is self._seen:
            return
        changed = view.version != self._seen.version
        self._seen = view
        if not changed:
            return
        self._ring = ring_of(view, self._node)
        records = {s.record.name: s.record for s in view.servers if self._node in (None, s.record.node)}
        for name in [
            name for name, link in self._links.items() if _address(link.record) != _address(records.get(name))
        ]:
            self._links.pop(name).retire()
        for name, record in records.items():
            if name not in self._links:
                self._links[name] = ServerLink(record, self._hello)
        self._segments.keep({record.segment for record in records.values()})

    def primary(self, block: BlockHash) -> ServerLink | None:
        """The link to the server that a block is written to; None while there is none."""
        name = self._ring.primary(block)
        return None if name is None else self._links[name]

    def skipped(self) -> list[str]:
        """Servers that are left alone now after a failure, by name."""
        now = time.monotonic()
        return sorted(name for name, link in self._links.items() if link.skipped(now))

    def close(self) -> None:
        """End all links, and with them leases and reservations."""
        for link in self._links.values():
            link.retire()
        self._links.clear()
        self._seen = EMPTY_VIEW
        self._ring = ring_of(EMPTY_VIEW)


def _address(record: ServerRecord | None) -> _Address | None:
    return None if record is None else (record.host, record.port, record.incarnation)

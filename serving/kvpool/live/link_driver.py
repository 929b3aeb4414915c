"""Drives an operation on the pool over blocking connections: one round trip for all concurrent requests."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from serving.errors import PoolError
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.messages import ANSWERS, Abort, Message, ReleaseLeases, Report
from serving.kvpool.core.operation import (
    ClientOperation,
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolFailure,
    PoolRead,
    PoolWrite,
    reason_of,
)
from serving.kvpool.core.ring import ring_of
from serving.kvpool.live.block_copies import BlockCopies
from serving.kvpool.live.segments import Segments
from serving.kvpool.live.server_link import PoolGreeting, ServerLink
from serving.values.pool_view import EMPTY_VIEW, PoolView, ServerRecord

BOOKED = (ReleaseLeases, Report, Abort)
"""Requests about leases and reservations of one connection, not valid on another one."""


class LinkDriver:
    """Drives one operation, or several in sequence on the same leases.

    Args:
        links: by server.
        copies: for operations that move blocks.
        connections: number of the connection of each link under which leases are booked; absent = the current one.
    """

    def __init__(
        self,
        links: Mapping[str, ServerLink],
        copies: BlockCopies | None = None,
        connections: Mapping[str, int] | None = None,
    ) -> None:
        self._links = links
        self._copies = copies
        self._connections = connections or {}

    def drive(self, operation: ClientOperation) -> None:
        """Carry out an operation until it has its result.

        After an unexpected error all connections are closed, so that no lease or reservation remains.
        """
        try:
            effects = operation.start(time.monotonic())
            while effects:
                effects = [
                    effect for event in self._carry_out(effects) for effect in operation.on(event, time.monotonic())
                ]
        except BaseException:
            for link in self._links.values():
                link.close()
            raise

    def _carry_out(self, effects: Sequence[PoolEffect]) -> Iterator[PoolEvent]:
        """Carry out effects, and yield the resulting events in order."""
        failed: set[str] = set()
        asks: list[PoolAsk] = []
        writes: list[PoolWrite] = []
        alone = len(effects) == 1
        for effect in effects:
            if isinstance(effect, PoolRead):
                yield self._copying.read(effect)
            elif isinstance(effect, PoolWrite):
                writes.append(effect)
            elif effect.server not in failed:
                link = self._links[effect.server]
                try:
                    if isinstance(effect, PoolAsk):
                        if not alone:
                            link.prepare(effect.until)  # greetings of all new connections are under way at once
                        asks.append(effect)
                    elif isinstance(effect, PoolClose):
                        link.close()
                    elif self._is_booked_there(link, effect.message):
                        link.post(effect.message, effect.until)
                except PoolError as error:
                    failed.add(effect.server)
                    yield PoolFailure(effect.server, reason_of(error))
        if asks:
            yield from self._ask(asks)
        # Local ones first: a slow connection then costs only its own blocks.
        for order in sorted(writes, key=lambda order: not self._links[order.server].local):
            yield self._copying.write(order)

    def _ask(self, asks: list[PoolAsk]) -> Iterator[PoolEvent]:
        if len(asks) > 1:
            # Those that can be asked at once come first: they answer while others are waited for.
            asks.sort(key=lambda ask: not self._links[ask.server].prompt)
        waited: list[PoolAsk] = []
        for ask in asks:
            try:
                self._links[ask.server].send(ask.message, ask.until)
                waited.append(ask)
            except PoolError as error:
                yield PoolFailure(ask.server, reason_of(error))
        for ask in waited:
            try:
                answer = self._links[ask.server].receive(ANSWERS[type(ask.message)], ask.until)
            except PoolError as error:
                yield PoolFailure(ask.server, reason_of(error))
            else:
                yield PoolAnswer(ask.server, answer)

    @property
    def _copying(self) -> BlockCopies:
        assert self._copies is not None, "an operation that moves blocks needs a way to copy them"
        return self._copies

    def _is_booked_there(self, link: ServerLink, message: Message) -> bool:
        if not isinstance(message, BOOKED):
            return True
        return link.welcome is not None and self._connections.get(link.name, link.connection) == link.connection


# The server that owns a block, and the links to all servers of the latest view.

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
        self.seen = EMPTY_VIEW
        """The view last seen."""
        self.ring = ring_of(EMPTY_VIEW)
        """The ring of the view last seen."""
        self.links: dict[str, ServerLink] = {}
        """Links by server name, of the view last seen. Not to be changed."""

    def refresh(self) -> None:
        """Adopt the latest view.

        Links to servers that left, or were replaced by another incarnation, end together with their pauses.
        """
        view = self._view()
        if view is self.seen:
            return
        changed = view.version != self.seen.version
        self.seen = view
        if not changed:
            return
        self.ring = ring_of(view, self._node)
        records = {s.record.name: s.record for s in view.servers if self._node in (None, s.record.node)}
        for name in [name for name, link in self.links.items() if _address(link.record) != _address(records.get(name))]:
            self.links.pop(name).retire()
        for name, record in records.items():
            if name not in self.links:
                self.links[name] = ServerLink(record, self._hello)
        self._segments.keep({record.segment for record in records.values()})

    def primary(self, block: BlockHash) -> ServerLink | None:
        """The link to the server that a block is written to; None while there is none."""
        name = self.ring.primary(block)
        return None if name is None else self.links[name]

    def skipped(self) -> list[str]:
        """Servers that are left alone now after a failure, by name."""
        now = time.monotonic()
        return sorted(name for name, link in self.links.items() if link.skipped(now))

    def close(self) -> None:
        """End all links, and with them leases and reservations."""
        for link in self.links.values():
            link.retire()
        self.links.clear()
        self.seen = EMPTY_VIEW
        self.ring = ring_of(EMPTY_VIEW)


def _address(record: ServerRecord | None) -> _Address | None:
    return None if record is None else (record.host, record.port, record.incarnation)

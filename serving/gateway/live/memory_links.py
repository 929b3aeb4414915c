"""A gateway's connections to the memory servers: small requests that no client waits for long, and none depends on.

    answers = await links.ask_owners(hashes, lambda mine: Prefetch(space, mine), Prefetched)
    answers = await links.ask_all(message, Hinted)

One connection per server of the pool's view, opened at its first use. A server that is away, late or busy costs no
error: its answer is absent, and `ServerBackoff` decides when it is used again. Instances do not use these connections.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from serving.errors import UNREADABLE, ConfigError, PoolError, ProofError, in_words
from serving.ids import BlockHash
from serving.kvpool.core.entry import Space
from serving.kvpool.core.messages import (
    MAX_BODY_BYTES,
    MAX_ITEMS,
    Failed,
    Message,
    Prefetch,
    Prefetched,
    ToClient,
    Welcome,
    encoder,
    to_client,
)
from serving.kvpool.core.ring import ring_of
from serving.kvpool.core.server_backoff import ServerBackoff
from serving.kvpool.live.frames import HEADER, POOL_CHANNEL
from serving.kvpool.live.server_link import PoolGreeting
from serving.sockets.proof import MAX_PROOF_BYTES, Prover, framed
from serving.sockets.tls import binding_of, tls_ends
from serving.values.pool_view import EMPTY_VIEW, PoolView, ServerRecord

logger = logging.getLogger(__name__)

_R = TypeVar("_R", bound=Message)
ANSWER_S = 1.0
"""Deadline of a request, its wait for earlier ones included."""
MAX_WAITING = 64
"""Requests of one connection that are under way or wait; further ones are not sent."""
MAX_PREFETCHES = 64
"""Prefixes whose prefetch is under way; further ones are not prefetched."""


class MemoryLink:
    """One connection to the server that a record describes, for a single event loop."""

    def __init__(self, record: ServerRecord, greeting: PoolGreeting) -> None:
        self.record = record
        """Where the server is."""
        self.backoff = ServerBackoff()
        self._greeting = greeting
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def ask(self, message: Message, kind: type[_R], limit_s: float = ANSWER_S) -> _R | None:
        """The server's answer; None if there is none in time, of any cause. Never raises for the server's sake."""
        now = asyncio.get_running_loop().time
        if self._waiting >= MAX_WAITING or (self._streams is None and self.backoff.skips(now())):
            return None
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                async with self._turn:
                    return await self._exchange(message, kind)
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    def retire(self) -> None:
        """End the link for good, because its server left the pool."""
        self.close()
        self.backoff.retire()

    async def _exchange(self, message: Message, kind: type[_R]) -> _R | None:
        """One request and its answer. Effects: an error or a cancellation in between closes the connection."""
        name, now = self.record.name, asyncio.get_running_loop().time
        try:
            if self._streams is None:
                if self.backoff.skips(now()):  # the request before this one failed
                    return None
                self._streams = await self._connect()
            reader, writer = self._streams
            writer.write(_frame(message))
            await writer.drain()
            answer = await _answer(reader)
        except (OSError, EOFError, ProofError, ConfigError, PoolError) as error:
            logger.debug("memory server %s does not answer a gateway (%s)", name, in_words(error))
            self._broken(now())
            return None
        except asyncio.CancelledError:  # late, or not wanted any more: its answer would be taken for the next one's
            self._broken(now())
            raise
        self.backoff.on_answer()
        if isinstance(answer, kind):
            return answer
        logger.info("memory server %s: %s", name, answer.reason if isinstance(answer, Failed) else type(answer))
        return None

    def _broken(self, now: float) -> None:
        self.close()
        self.backoff.on_failure(now)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, prove the secret, and greet.

        Raises: OSError, EOFError, ProofError, ConfigError, PoolError.
        """
        ends, record = tls_ends(), self.record
        reader, writer = await asyncio.open_connection(
            record.host,
            record.port,
            ssl=None if ends is None else ends.client,
            server_hostname="" if ends else None,
        )
        try:
            secure = writer.get_extra_info("ssl_object")
            shown = None if secure is None else secure.getpeercert(binary_form=True)
            prover = Prover(POOL_CHANNEL, "client", self._greeting.secrets, binding_of(shown))
            writer.write(framed(prover.opening))
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > MAX_PROOF_BYTES:
                raise ProofError("no proof of the secret, but other bytes; use the same release everywhere")
            writer.write(framed(prover.answer(await reader.readexactly(size))) + _frame(self._greeting.hello))
            welcome = await _answer(reader)
            if not isinstance(welcome, Welcome) or welcome.server != record.name:
                raise PoolError(f"it refused the connection: {welcome}")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


class MemoryLinks:
    """The connections of one gateway to all servers of the pool.

    Args:
        greeting: introduction of this gateway, see `hello_of`.
        view: returns the latest view; called at every request, so it must be cheap and never block.
    """

    def __init__(self, greeting: PoolGreeting, view: Callable[[], PoolView]) -> None:
        self._greeting = greeting
        self._view = view
        self._seen = EMPTY_VIEW
        self._ring = ring_of(EMPTY_VIEW)
        self._steady = True
        """Every block is with its primary."""
        self._links: dict[str, MemoryLink] = {}

    async def ask_owners(
        self,
        hashes: Sequence[BlockHash],
        message: Callable[[tuple[BlockHash, ...]], Message],
        kind: type[_R],
        limit_s: float = ANSWER_S,
    ) -> dict[str, _R]:
        """Send each server a request about the blocks that it may hold, in parallel.

        Args:
            hashes: in order of the prefix; behind the first `MAX_ITEMS` they are ignored.
            message: the request, given the hashes of one server.
            kind: expected type of the answers.
        Returns: answers by server; absent = none in time.
        """
        self._refresh()
        asked: dict[str, list[BlockHash]] = defaultdict(list)
        for block in hashes[:MAX_ITEMS]:
            for name in self._ring.owners(block)[:1] if self._steady else self._ring.readers(block):
                asked[name].append(block)
        return await self._gather({name: message(tuple(mine)) for name, mine in asked.items()}, kind, limit_s)

    async def ask_all(self, message: Message, kind: type[_R], limit_s: float = ANSWER_S) -> dict[str, _R]:
        """Send every server the same request, in parallel. Returns: responses by server, without late ones."""
        self._refresh()
        return await self._gather(dict.fromkeys(self._links, message), kind, limit_s)

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the servers of the latest view."""
        self._refresh()
        return tuple(self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.retire()
        self._links.clear()
        self._seen = EMPTY_VIEW

    async def _gather(self, messages: Mapping[str, Message], kind: type[_R], limit_s: float) -> dict[str, _R]:
        links = [(name, self._links[name], message) for name, message in messages.items() if name in self._links]
        answers = await asyncio.gather(*(link.ask(message, kind, limit_s) for _, link, message in links))
        return {name: answer for (name, _, _), answer in zip(links, answers, strict=True) if answer is not None}

    def _refresh(self) -> None:
        """Adopt the latest view: links to servers that left, or were replaced, end."""
        view = self._view()
        if view is self._seen:
            return
        changed, self._seen = view.version != self._seen.version, view
        if not changed:
            return
        self._ring = ring_of(view)
        self._steady = all(server.weight >= 1 for server in view.servers)
        records = {server.record.name: server.record for server in view.servers}
        for name, link in list(self._links.items()):
            if name not in records or _place(records[name]) != _place(link.record):
                self._links.pop(name).retire()
        for name, record in records.items():
            if name not in self._links:
                self._links[name] = MemoryLink(record, self._greeting)


class Prefetcher:
    """Has the memory servers load prefixes from SSD, in the background.

    Attributes:
        blocks: by outcome: `in_memory`, `loading`, `missing`, `refused`; those without a response are `unanswered`.
    """

    def __init__(self, links: MemoryLinks) -> None:
        self.links = links
        self.blocks: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, namespace: str, layout: str, hashes: Sequence[BlockHash]) -> "asyncio.Task[None] | None":
        """Request one prefix, without waiting. Must be called on the event loop.

        Returns: a task that ends with the responses; None if too many are in progress, and this one is skipped.
        """
        if len(self._running) >= MAX_PREFETCHES:
            return None
        task = asyncio.get_running_loop().create_task(self._ask(Space(namespace, layout), hashes))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def close(self) -> None:
        """End what is under way, and close the connections."""
        for task in self._running:
            task.cancel()
        self.links.close()

    async def _ask(self, space: Space, hashes: Sequence[BlockHash]) -> None:
        answers = await self.links.ask_owners(hashes, lambda mine: Prefetch(space, mine), Prefetched)
        answered = 0
        for one in answers.values():
            self.blocks.update(in_memory=one.in_memory, loading=one.loading, missing=one.missing, refused=one.refused)
            answered += one.in_memory + one.loading + one.missing + one.refused
        self.blocks["unanswered"] += max(0, len(hashes) - answered)


def _place(record: ServerRecord) -> tuple[str, int, str]:
    return record.host, record.port, record.incarnation


def _frame(message: Message) -> bytes:
    """Raises: PoolError if it is too large."""
    body = encoder.encode(message)
    if len(body) > MAX_BODY_BYTES:
        raise PoolError(f"a frame of {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed")
    return HEADER.pack(len(body), 0) + body


async def _answer(reader: asyncio.StreamReader) -> ToClient:
    """Raises: OSError, EOFError if the connection ends; PoolError for other bytes than an answer without payload."""
    body_bytes, payload_bytes = HEADER.unpack(await reader.readexactly(HEADER.size))
    if body_bytes > MAX_BODY_BYTES or payload_bytes:
        raise PoolError(f"a frame of {body_bytes} + {payload_bytes} bytes where an answer without payload was expected")
    try:
        return to_client.decode(await reader.readexactly(body_bytes))
    except UNREADABLE as error:
        raise PoolError(f"an unreadable frame ({error}); the other side speaks another protocol") from error

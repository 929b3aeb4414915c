"""Exchange of metrics among gateways when one of them is scraped, so that each can show the whole system.

They request timelines from each other in the same way, since a client reaches an arbitrary gateway.

    scraper -> gateway A -- proof, its numbers -----> gateway B      one connection per exchange, all concurrent,
                         <-- B's numbers ------------                `DEADLINE_S` in total

The exchange is mutual: when B is scraped next, it already has the numbers that A sent. A peer that does not respond
in time is shown with its last known numbers; one whose port is closed has exited and is dropped. There is no traffic
between scrapes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import UNREADABLE, LinkError, in_words
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.core.timeline import Choose, RequestTimes
from serving.sockets.proof import Channel
from serving.sockets.secrets import ClusterSecrets
from serving.telemetry.shared_metrics import GatewayNumbers
from serving.values.news import Value
from serving.wire.connection import Connection, Listener, connect_proving, verifier_of

logger = logging.getLogger(__name__)

DEADLINE_S = 1.0
"""Scrapers wait for 10 s by default, and clients of `/load` for less."""
FIRST_REPLY_S = 2.0
"""How long a gateway waits after its start for the first list of other gateways."""
KEEP_S = 60.0
"""How long a gateway is shown that neither responds nor is listed."""
GREETING_BYTES = 4 << 10
"""Buffer limit for a peer that has not proved its identity."""
NUMBERS_BYTES = 8 << 20
MAX_CALLERS = 64
MAX_PEERS = 256


PEER_CHANNEL = Channel("gateways", 3, frozenset({"gateway"}))


class Numbers(Value, frozen=True):
    """The numbers of one gateway, and where it listens for others."""

    numbers: GatewayNumbers
    host: str
    port: int


class TimesWish(Value, frozen=True):
    """Request for timelines: of one request by its id, or the first few by a criterion.

    Args:
        namespace: of the requesting tenant; None = all tenants.
        request_id: empty = select by `which` and `limit`.
    """

    namespace: str | None
    request_id: str = ""
    which: Choose = "newest"
    limit: int = 1


class FoundTimes(Value, frozen=True):
    """Timelines of one gateway that match a request."""

    found: tuple[RequestTimes, ...]


class CancelWish(Value, frozen=True):
    """Request to cancel requests; see `RunningRequests.cancel`."""

    namespace: str | None
    ids: tuple[str, ...]


class Cancelled(Value, frozen=True):
    """Ids of requests that a gateway has cancelled."""

    ids: tuple[str, ...]


Message = Numbers | TimesWish | FoundTimes | CancelWish | Cancelled
Answer = TypeVar("Answer", Numbers, FoundTimes, Cancelled)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def _decode(body: bytes) -> Message:
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise LinkError(f"unreadable frame from a gateway: {error}") from error


@dataclass(slots=True)
class _Peer:
    """Another gateway. `listed_at`: time of the latest list, or message, that named it."""

    address: tuple[str, int]
    listed_at: float
    known: GatewayNumbers | None = None


class GatewayPeers:
    """`Others` for one gateway. Used from its event loop.

    Args:
        gateway: this gateway's name.
        tell: returns this gateway's numbers.
        times: finds this gateway's own timelines.
        running: this gateway's own running requests.
    """

    def __init__(
        self,
        gateway: str,
        secret: str | ClusterSecrets,
        tell: Callable[[], GatewayNumbers],
        times: Callable[[TimesWish], Sequence[RequestTimes]] = lambda _: (),
        running: RunningRequests | None = None,
    ) -> None:
        self._gateway = gateway
        self._secrets = ClusterSecrets.of(secret)
        self._tell = tell
        self._times = times
        self._running = running or RunningRequests()
        self._peers: dict[str, _Peer] = {}
        self._listed: frozenset[str] = frozenset()
        """The other gateways in the board's latest event."""
        self._callers: dict[Connection, bool] = {}
        """Connected gateways, and whether they have proved knowledge of the secret."""
        self._exchange: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._heard = asyncio.Event()
        self._listener = Listener(self._accept)
        self.address: tuple[str, int] | None = None

    def start(self, host: str, ports: PortRange = ANY_PORT) -> None:
        """Listen for other gateways on `host`.

        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        self.address = self._listener.start(host, ports)

    def move(self, host: str) -> None:
        """Also listen on another address of this host, and announce that one. Raises: as `start`."""
        self._listener.move(host)
        self.address = self._listener.address

    async def stop(self) -> None:
        """Stop listening."""
        if self._exchange is not None:
            self._exchange.cancel()
        await self._listener.stop()
        for connection in list(self._callers):
            connection.close("the gateway stops")

    def set_peers(self, peers: Mapping[str, tuple[str, int]]) -> None:
        """Update the list of other gateways from the board. Effects: drops gateways unlisted for long."""
        now = self._loop.time()
        self._listed = frozenset(peers) - {self._gateway}
        for gateway, address in peers.items():
            self._list(gateway, address, now)
        self._peers = {name: peer for name, peer in self._peers.items() if peer.listed_at > now - KEEP_S}
        self._heard.set()

    async def numbers(self) -> Sequence[GatewayNumbers]:
        """Implements `Others.numbers`."""
        if not self._heard.is_set():
            await self._first_reply()
        if self._peers:
            if self._exchange is None or self._exchange.done():  # concurrent scrapes share one exchange
                self._exchange = self._loop.create_task(self._ask_all())
            await asyncio.shield(self._exchange)
        return [peer.known for peer in self._peers.values() if peer.known is not None]

    async def first(self, name: str) -> bool:
        """Whether `name` sorts before all peers in the board's last list, which omits gateways silent for seconds."""
        if not self._heard.is_set():
            await self._first_reply()
        return all(name < other for other in self._listed)

    async def _first_reply(self) -> None:
        try:
            async with asyncio.timeout_at(self._begun + FIRST_REPLY_S):
                await self._heard.wait()
        except TimeoutError:
            self._heard.set()

    def _list(self, gateway: str, address: tuple[str, int], now: float) -> None:
        if gateway == self._gateway:
            return
        peer = self._peers.get(gateway)
        if peer is not None:
            peer.listed_at = now
        elif len(self._peers) < MAX_PEERS:
            self._peers[gateway] = _Peer(address, now)

    async def _ask_all(self) -> None:
        assert self.address is not None
        mine = Numbers(self._tell(), *self.address)
        await asyncio.gather(*(self._ask(name, peer, mine) for name, peer in list(self._peers.items())))

    async def _ask(self, name: str, peer: _Peer, mine: Numbers) -> None:
        try:
            self._learn(await self._put_to(peer, mine, Numbers))
        except ConnectionRefusedError:
            self._peers.pop(name, None)
        except (OSError, TimeoutError, LinkError) as error:
            logger.warning("gateway %s does not report its metrics (%s)", name, in_words(error))

    async def find(self, wish: TimesWish) -> list[RequestTimes]:
        """Matching timelines of the other gateways; none of a gateway that does not respond in time."""
        if not self._heard.is_set():
            await self._first_reply()
        found = await asyncio.gather(*(self._find(name, peer, wish) for name, peer in list(self._peers.items())))
        return [times for one in found for times in one]

    async def _find(self, name: str, peer: _Peer, wish: TimesWish) -> tuple[RequestTimes, ...]:
        try:
            return (await self._put_to(peer, wish, FoundTimes)).found
        except (OSError, TimeoutError, LinkError) as error:
            logger.warning("gateway %s does not report its timelines (%s)", name, in_words(error))
            return ()

    async def cancel(self, ids: Sequence[str], namespace: str | None) -> Sequence[str]:
        """Cancel running requests, in this gateway and the others; see `RunningRequests.cancel`.

        Requests of a gateway that does not respond in time go on.
        """
        found = set(self._running.cancel(ids, namespace))
        if not self._heard.is_set():
            await self._first_reply()
        wish = CancelWish(namespace, tuple(ids))
        others = await asyncio.gather(*(self._cancel(name, peer, wish) for name, peer in list(self._peers.items())))
        found.update(name for one in others for name in one)
        return [name for name in dict.fromkeys(ids) if name in found]

    async def _cancel(self, name: str, peer: _Peer, wish: CancelWish) -> tuple[str, ...]:
        try:
            return (await self._put_to(peer, wish, Cancelled)).ids
        except (OSError, TimeoutError, LinkError) as error:
            logger.warning("gateway %s does not cancel requests (%s)", name, in_words(error))
            return ()

    async def _put_to(self, peer: _Peer, question: Value, kind: type[Answer]) -> Answer:
        """Send one request to another gateway, on a connection of its own.

        Raises: OSError, TimeoutError, LinkError.
        """
        answer: asyncio.Future[Answer | LinkError] = self._loop.create_future()

        def on_frame(_: Connection, body: bytes) -> None:
            message = _decode(body)
            if isinstance(message, kind) and not answer.done():
                answer.set_result(message)

        def on_closed(_: Connection, reason: str) -> None:
            if not answer.done():
                answer.set_result(LinkError(reason))

        connection = Connection(on_frame, on_closed)
        connection.max_frame_bytes = NUMBERS_BYTES
        try:
            async with asyncio.timeout(DEADLINE_S):
                await connect_proving(
                    connection, peer.address, PEER_CHANNEL, "gateway", self._secrets, lambda: connection.send(question)
                )
                received = await answer
            if isinstance(received, LinkError):
                raise received
            return received
        finally:
            answer.cancel()
            connection.close("the exchange is over")

    def _learn(self, message: Numbers) -> None:
        """Store a peer's numbers unless later ones are known: responses may overtake each other."""
        received = message.numbers
        self._list(received.gateway, (message.host, message.port), self._loop.time())
        peer = self._peers.get(received.gateway)
        if peer is not None and (peer.known is None or received.serial > peer.known.serial):
            peer.known = received

    def _accept(self) -> Connection:
        connection = Connection(self._on_frame, self._on_closed)
        connection.max_frame_bytes = GREETING_BYTES
        if len(self._callers) >= MAX_CALLERS:
            next(iter(self._callers)).close("too many callers")
        self._callers[connection] = False
        connection.verify(verifier_of(PEER_CHANNEL, self._secrets), partial(self._proved, connection))
        self._loop.call_later(2 * DEADLINE_S, connection.close, "no exchange lasts so long")
        return connection

    def _on_closed(self, connection: Connection, _: str) -> None:
        self._callers.pop(connection, None)

    def _proved(self, connection: Connection) -> None:
        self._callers[connection] = True
        connection.max_frame_bytes = NUMBERS_BYTES

    def _on_frame(self, connection: Connection, body: bytes) -> None:
        message = _decode(body)
        if isinstance(message, Numbers) and self.address is not None:
            self._learn(message)
            connection.send(Numbers(self._tell(), *self.address))
        elif isinstance(message, TimesWish):
            self._send_found(connection, message)
        elif isinstance(message, CancelWish):
            connection.send(Cancelled(self._running.cancel(message.ids, message.namespace)))

    def _send_found(self, connection: Connection, wish: TimesWish) -> None:
        """Respond with as many timelines as fit into a frame."""
        found = self._times(wish)
        while len(_encoder.encode(FoundTimes(tuple(found)))) > NUMBERS_BYTES:
            found = found[: len(found) // 2]
        connection.send(FoundTimes(tuple(found)))

"""The remote end of a link, controlled by a test: plain sockets, our frames."""

import asyncio
from collections.abc import Callable
from typing import Self

from serving.ids import GatewayId, NodeId, ReplicaId
from serving.sockets.proof import Channel, Prover, Verifier, framed
from serving.sockets.secrets import ClusterSecrets
from serving.values.instances import Status
from serving.values.news import News, Value
from serving.wire import messages as m
from tests.live.harness import SECRET

WELCOME = m.InstanceWelcome(ReplicaId("decode#1"), "decode", NodeId("node"), "layout", 16, 100, 1024)
STATUS = Status(0, 0, 0, 100, draining=False, progress_age_s=0.0, tokens_per_s=0.0)


class RawGateway:
    """A gateway's end: connects to an instance and sends exactly the given frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], name: str | None = None) -> Self:
        """Connect; with a name, introduce itself and read the welcome."""
        gateway = cls(*await asyncio.open_connection(*address))
        if name is not None:
            await gateway.prove()
            gateway.send(m.GatewayHello(GatewayId(name)))
            assert isinstance(await gateway.read(), m.InstanceWelcome)
        return gateway

    async def prove(self, secret: str = SECRET, channel: Channel = m.LINK_CHANNEL) -> None:
        """Prove the secret, and verify the peer's proof."""
        prover = Prover(channel, "gateway", ClusterSecrets((secret,)))
        self.writer.write(framed(prover.opening))
        self.writer.write(framed(prover.answer(await _body(self.reader))))

    def send(self, *messages: Value) -> None:
        """Send frames."""
        self.writer.write(b"".join(m.encode(message) for message in messages))

    async def read(self) -> m.ToGateway:
        """The next frame.

        Raises: asyncio.IncompleteReadError when the instance has closed the link.
        """
        return m.decode_to_gateway(await _body(self.reader))

    async def news(self) -> list[News]:
        """Events of the next frame that has any; load reports are skipped."""
        while True:
            message = await self.read()
            if isinstance(message, m.Frame):
                return list(message.news)

    async def news_until(self, done: Callable[[News], bool]) -> list[News]:
        """All events up to the first item that is `done`, included."""
        news: list[News] = []
        while not any(done(item) for item in news):
            news += await self.news()
        return news

    async def closed(self) -> bool:
        """Whether the instance closed the link without another frame."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def ended(self) -> bool:
        """Whether the instance closed the link, after any frames."""
        async with asyncio.timeout(60):
            try:
                await self.reader.read()
            except ConnectionResetError:
                pass
            return True

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


class RawInstance:
    """An instance's end: a listener that answers every connection by `script`."""

    def __init__(self, script: Callable[[asyncio.StreamWriter], None]) -> None:
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._script = script
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        """Port of the listener."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        verifier = Verifier(m.LINK_CHANNEL, ClusterSecrets((SECRET,)))
        while not verifier.proved:
            answer = verifier.on_frame(await _body(reader))
            if answer:
                writer.write(framed(answer))
        self._script(writer)


async def _body(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def welcome(writer: asyncio.StreamWriter) -> None:
    """Greet, then send nothing more."""
    writer.write(m.encode(WELCOME) + m.encode(STATUS))

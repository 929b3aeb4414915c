"""A gateway's process freezes until the kernel ends its links, then continues."""

import asyncio
import os
import signal
import socket
import sys

import pytest

from serving.gateway.live.pool_links import LinkEvents, PoolLinks
from serving.ids import GatewayId, NodeId, ReplicaId, SequenceId
from serving.sockets.secrets import ClusterSecrets
from serving.values.news import Lost
from serving.wire import connection as c
from serving.wire import messages as m
from serving.wire.connection import Listener
from tests.live.harness import PATIENCE_S, SECRET, Member
from tests.live.wire import WELCOME
from tests.stopping import stop_process

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

CASE = "import sys, asyncio; from tests.live.test_frozen_gateway import play; asyncio.run(play(int(sys.argv[1])))"


async def play(port: int) -> None:
    """Run in a separate process: a gateway's links to one instance, which report their events."""

    def say(what: str) -> None:
        print(what, flush=True)

    events = LinkEvents(
        lambda link, frame: None, lambda link, status: None, lambda link: say("up"), lambda link, reason: say("down")
    )
    links = PoolLinks(GatewayId("g"), SECRET, events)
    while True:
        links.update([Member(ReplicaId("decode#1"), "decode", NodeId("node"), "127.0.0.1", port)])
        links.check_silence()
        await asyncio.sleep(0.05)


async def test_a_gateway_that_was_frozen_beyond_every_timeout_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = (socket.TCP_USER_TIMEOUT, 500)
    monkeypatch.setattr(c, "_VANISHED", (*c._VANISHED[:-1], timeout))
    greeted, ended = asyncio.Queue[c.Connection](), asyncio.Queue[str]()

    def greet(connection: c.Connection, body: bytes) -> None:
        assert isinstance(m.decode_to_instance(body), m.GatewayHello)
        connection.send(WELCOME)
        greeted.put_nowait(connection)

    def accepted() -> c.Connection:
        connection = c.Connection(greet, lambda _, reason: ended.put_nowait(reason))
        connection.verify(c.verifier_of(m.LINK_CHANNEL, ClusterSecrets((SECRET,))), lambda: None)
        return connection

    listener = Listener(accepted)
    _, port = listener.start("127.0.0.1")
    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", CASE, str(port), stdout=asyncio.subprocess.PIPE)
    assert peer.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            connection = await greeted.get()
            assert await peer.stdout.readline() == b"up\n"
            stop_process(peer.pid)
            news = m.Frame(1, (Lost(SequenceId("s"), "x" * (1 << 20)),))
            while ended.empty():  # until the kernel's buffers are full, and it gives up
                if connection._transport is not None and not connection._transport.get_write_buffer_size():
                    connection.send(news)
                await asyncio.sleep(0.01)
            assert "timed out" in ended.get_nowait()
            os.kill(peer.pid, signal.SIGCONT)
            assert await peer.stdout.readline() == b"down\n"
            assert await peer.stdout.readline() == b"up\n"
            assert (await greeted.get()).open
    finally:
        peer.kill()
        await peer.wait()
        await listener.stop()

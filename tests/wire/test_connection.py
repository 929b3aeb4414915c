"""The connection cuts frames correctly for any chunks, and drops peers that misbehave."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from itertools import pairwise
from urllib.error import URLError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LinkError
from serving.ids import SequenceId
from serving.values.orders import Cancel
from serving.wire import connection as c
from serving.wire import messages as m


class FakeTransport(asyncio.Transport):
    """Collects written bytes; `unread` is what the peer has left in the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.unread = 0
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Peer:
    """A connection with a fake transport and its recorded events."""

    def __init__(self, on_body: Callable[[bytes], None] | None = None) -> None:
        self.bodies: list[bytes] = []
        self.ends: list[str] = []
        self.connection = c.Connection(lambda _, body: (on_body or self.bodies.append)(body), self._ended)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def _ended(self, connection: c.Connection, reason: str) -> None:
        self.ends.append(reason)


@given(bodies=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_frames_come_whole_whatever_the_chunks(bodies: list[bytes], cuts: list[int]) -> None:
    peer = Peer()
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        peer.connection.data_received(stream[start:end])
    assert peer.bodies == bodies


def test_an_announced_giant_frame_ends_the_link_without_buffering_it() -> None:
    peer = Peer()
    peer.connection.data_received((m.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    peer.connection.connection_lost(None)
    assert peer.transport.aborted
    assert "announced a frame" in peer.ends[0]


def test_a_frame_that_is_refused_ends_the_link() -> None:
    def refuse(body: bytes) -> None:
        raise LinkError("nonsense")

    peer = Peer(refuse)
    peer.connection.data_received(b"\0\0\0\1x\0\0\0\1y")
    peer.connection.connection_lost(None)
    assert peer.transport.aborted
    assert peer.ends == ["nonsense"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (OSError("Multiple exceptions: [Errno 111] first, [Errno 101] second"), "Multiple exceptions: first, second"),
        (URLError(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (TimeoutError(), "no answer in time"),
        (BrokenPipeError(), "BrokenPipeError"),
    ],
)
def test_why_a_link_ended_is_in_words(error: OSError, words: str) -> None:
    told = list[str]()
    link = c.Connection(lambda *_: None, lambda _, reason: told.append(reason))
    link.connection_lost(error)
    assert told == [words]


def test_a_peer_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer()
    assert peer.connection.send(Cancel(SequenceId("a")))
    peer.transport.unread = c.MAX_UNSENT_BYTES + 1
    assert not peer.connection.send(Cancel(SequenceId("a")))
    assert peer.transport.aborted
    assert not peer.connection.send(Cancel(SequenceId("a")))
    peer.connection.connection_lost(None)
    assert peer.ends == ["the peer does not read"]
    assert not peer.connection.open


@pytest.mark.asyncio
async def test_a_host_that_vanishes_is_given_up_though_something_is_always_on_its_way_to_it() -> None:
    """An instance reports several times a second, so the kernel never probed; it waited a quarter of an hour."""
    made: asyncio.Queue[asyncio.Transport] = asyncio.Queue()

    class Noting(c.Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, asyncio.Transport)
            made.put_nowait(transport)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Noting(lambda *_: None, lambda *_: None), "127.0.0.1", 0)
    async with server:
        client = socket.create_connection(server.sockets[0].getsockname())
        transport = await made.get()
        raw = transport.get_extra_info("socket")
        asks, counts, every = socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_KEEPINTVL
        idle_s, times, pause_s = (raw.getsockopt(socket.IPPROTO_TCP, option) for option in (asks, counts, every))
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * (idle_s + times * pause_s)
        transport.abort()
        client.close()


@pytest.mark.asyncio
async def test_one_that_is_closed_before_it_is_made_does_not_stay_open() -> None:
    ends: list[str] = []
    connection = c.Connection(lambda *_: None, lambda _, reason: ends.append(reason))
    connection.close("one too many")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    assert ends == ["one too many"]
    writer.close()
    server.close()

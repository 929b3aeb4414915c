"""A listener serves its clients; connections accepted before its close still get their protocol."""

import asyncio
import errno
import logging
import socket

import pytest

from serving.wire import connection as module
from serving.wire.connection import Connection, Listener
from tests.live.harness import until

pytestmark = pytest.mark.asyncio


class Host:
    """The listener's host: keeps connections and sends no reply."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.ended: list[str] = []
        self.listener = Listener(self.make)

    def make(self) -> Connection:
        connection = Connection(lambda *_: None, lambda _, reason: self.ended.append(reason))
        self.made.append(connection)
        return connection


async def test_one_that_the_kernel_accepted_before_the_end_has_a_transport_after_it() -> None:
    host = Host()
    address = host.listener.start("127.0.0.1")
    peers = [socket.create_connection(address) for _ in range(3)]
    while not host.listener._accepted:  # noqa: ASYNC110 - the very turn in which it accepts
        await asyncio.sleep(0)
    await host.listener.stop()
    assert len(host.made) == 3
    assert all(connection.open for connection in host.made)
    for connection, peer in zip(host.made, peers, strict=True):
        connection.close("told")
        await asyncio.sleep(0)
        assert peer.recv(1) == b""
        peer.close()
    assert host.ended == ["told"] * 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    await host.listener.stop()


async def test_a_kernel_without_files_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_REFUSAL_S", 0.02)
    host = Host()
    address = host.listener.start("127.0.0.1")
    listening = host.listener._sockets[0]

    class Refusing(socket.socket):
        files = 0

        def accept(self) -> tuple[socket.socket, object]:
            if not self.files:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    loop = asyncio.get_running_loop()
    loop.remove_reader(listening)
    refusing = Refusing(fileno=listening.detach())
    host.listener._sockets[0] = refusing
    loop.add_reader(refusing, host.listener._accept, refusing)
    with caplog.at_level(logging.WARNING), socket.create_connection(address):
        await until(lambda: "raise the limit of open files" in caplog.text, "the log says why")
        refusing.files = 1
        await until(lambda: bool(host.made), "it is accepted after all")
        assert len(host.made) == 1
        await host.listener.stop()
        host.made[0].close("told")
        await asyncio.sleep(0)


async def test_a_name_that_cannot_be_bound_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot assign"):
        Host().listener.start("203.0.113.1")


async def test_a_listener_that_moves_is_reached_at_both_addresses() -> None:
    host = Host()
    first = host.listener.start("127.0.0.1")
    host.listener.move("127.0.0.1")
    assert host.listener.address == first
    host.listener.move("127.0.0.2")
    assert host.listener.address == ("127.0.0.2", first[1])
    with socket.create_connection(first), socket.create_connection(host.listener.address):
        await until(lambda: len(host.made) == 2, "both are accepted")
    await host.listener.stop()
    host.listener.move("127.0.0.3")
    for connection in host.made:
        connection.close("told")
    await asyncio.sleep(0)

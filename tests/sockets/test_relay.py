"""A relay passes bytes between a TLS connection and a local socket, and ends both ends together."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.sockets.opening import connected, handshake, secured
from serving.sockets.relay import plain_end
from tests.sockets.certificates import Authority
from tests.sockets.ends import is_closed

PATIENT_S = 60.0


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Both ends of a TLS connection."""
    for name, value in Authority(tmp_path).issue("127.0.0.1").items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made: list[socket.socket] = []
        client = threading.Thread(target=lambda: made.append(connected(listener.getsockname(), PATIENT_S)[0]))
        client.start()
        server, _ = secured(listener.accept()[0])
        server.settimeout(PATIENT_S)
        handshake(server)
        client.join()
    yield [made[0], server]
    for one in (*made, server):
        one.close()


def plain(ends: list[socket.socket], stall_s: float = PATIENT_S) -> list[socket.socket]:
    """The plain ends of relays to both."""
    found = [plain_end(one, stall_s) for one in ends]
    for one in found:
        one.settimeout(PATIENT_S)
    return found


def test_bytes_of_both_directions_at_once(ends: list[socket.socket]) -> None:
    """More than all buffers together hold, while neither end reads before it has sent."""
    pair, sent = plain(ends), [os.urandom(8 << 20) for _ in range(2)]
    got = [bytearray(), bytearray()]

    def read(side: int) -> None:
        while len(got[side]) < len(sent[1 - side]):
            got[side] += pair[side].recv(1 << 20)

    threads = [threading.Thread(target=pair[side].sendall, args=(sent[side],)) for side in range(2)]
    threads += [threading.Thread(target=read, args=(side,)) for side in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENT_S)
    assert [bytes(one) for one in got] == sent[::-1]
    for end in pair:
        end.close()


@pytest.mark.parametrize("side", [0, 1])
def test_a_closed_end_closes_the_other(ends: list[socket.socket], side: int) -> None:
    pair = plain(ends)
    pair[side].close()
    assert is_closed(pair[1 - side])
    pair[1 - side].close()


def test_a_damaged_stream_closes_both_ends(ends: list[socket.socket]) -> None:
    below = socket.socket(fileno=os.dup(ends[0].fileno()))
    pair = plain(ends)
    below.sendall(b"no record of TLS")
    assert [is_closed(one) for one in pair] == [True, True]
    for one in (below, *pair):
        one.close()


def test_an_end_that_takes_no_bytes_is_closed(ends: list[socket.socket]) -> None:
    sender, silent = plain(ends, stall_s=0.2)
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        sender.sendall(bytes(64 << 20))  # more than all buffers of the path hold
    sender.close()
    silent.close()


def test_without_tls_the_connection_is_its_own_plain_end() -> None:
    one, other = socket.socketpair()
    assert plain_end(one, PATIENT_S) is one
    one.close()
    other.close()

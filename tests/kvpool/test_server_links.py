"""Access to a memory server, and its treatment of malformed messages."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from serving.errors import PoolUnreachableError, ProofError
from serving.kvpool.core import messages as m
from serving.kvpool.live.frames import HEADER, POOL_CHANNEL, receive, send
from serving.kvpool.live.server_connections import HELLO_DEADLINE_S
from serving.sockets.acceptor import MOST_STRANGERS
from serving.sockets.opening import open_proved
from serving.sockets.secrets import ClusterSecrets
from tests.kvpool.raw_client import SPACE, RawClient, connect, connect_unproved, hash_of, hello
from tests.kvpool.server_process import ServerProcess, running_server, segment_folder
from tests.kvpool.waits import PATIENCE_S
from tests.sockets.ends import is_closed

LIMIT = 12


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with segment_folder() as segments, running_server(segments, max_connections=LIMIT) as running:
        yield running


def works(server: ServerProcess) -> bool:
    with RawClient(server.record) as client:
        return client.lookup(hash_of(1)) == (None,)


def wait_until_alone(server: ServerProcess) -> None:
    """Wait until the server has noticed the end of all other connections; until then it may refuse one more."""
    deadline = time.monotonic() + PATIENCE_S
    others = -1
    while others:
        assert time.monotonic() < deadline, f"{others} clients are still counted"
        with contextlib.closing(connect(server.record)) as sock:
            send(sock, hello())
            if isinstance(receive(sock, m.to_client)[0], m.Welcome):
                send(sock, m.Stats())
                answer = receive(sock, m.to_client)[0]
                assert isinstance(answer, m.Data)
                others = answer.value["connections"] - 1
        time.sleep(0.01)


@pytest.mark.parametrize("secret", ["wrong", "", "sécret"])
def test_another_secret_is_refused(server: ServerProcess, secret: str) -> None:
    with pytest.raises(ProofError, match="wrong secret; take that of this cluster"):
        connect(server.record, secret)
    assert works(server)


def test_another_release_is_refused(server: ServerProcess) -> None:
    address, newer = (server.record.host, server.record.port), replace(POOL_CHANNEL, version=m.PROTOCOL + 1)
    with pytest.raises(ProofError, match=f"protocol {m.PROTOCOL + 1}, this side speaks {m.PROTOCOL}; use the same"):
        open_proved(address, newer, "client", ClusterSecrets(("secret",)), 60.0)
    assert works(server)


def test_a_first_frame_that_is_no_hello_is_answered_and_the_link_closed(server: ServerProcess) -> None:
    with connect(server.record) as sock:
        send(sock, m.Stats())
        assert isinstance(receive(sock, m.to_client)[0], m.Failed)
        with pytest.raises(PoolUnreachableError):
            receive(sock, m.to_client)
    assert works(server)


def test_a_long_first_frame_is_not_even_read(server: ServerProcess) -> None:
    with connect(server.record) as sock:
        sock.sendall(HEADER.pack(m.MAX_BODY_BYTES, m.MAX_CHUNK_BYTES))
        assert is_closed(sock)


def test_who_says_nothing_is_sent_away(server: ServerProcess) -> None:
    with connect_unproved(server.record) as silent, connect_unproved(server.record) as slow:
        start, sent = time.monotonic(), 0
        while time.monotonic() - start < HELLO_DEADLINE_S - 0.5:
            slow.send(b"\0" if sent != 2 else b"\1")  # a frame of 256 bytes
            sent += 1
            time.sleep(0.7)
        assert is_closed(silent)
        assert is_closed(slow)
        assert time.monotonic() - start < HELLO_DEADLINE_S + 3
    assert works(server)


def test_random_bytes_hurt_nobody(server: ServerProcess) -> None:
    rng = random.Random(4)
    good = m.encoder.encode(hello())
    with RawClient(server.record) as bystander:
        for turn in range(60):
            sock = connect(server.record)
            if turn % 2:
                sock.sendall(HEADER.pack(len(good), 0) + good)
                assert isinstance(receive(sock, m.to_client)[0], m.Welcome)
            body = bytearray(m.encoder.encode(m.Lookup(SPACE, (hash_of(1), hash_of(2)), 1.0)))
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            claimed = rng.choice([len(body), len(body), 2, 1 << 31, rng.randrange(1 << 16)])
            try:
                sock.sendall(HEADER.pack(claimed, rng.choice([0, 0, 0, 3])) + body)
                sock.shutdown(socket.SHUT_WR)
                assert is_closed(sock)
            except ConnectionError:
                pass  # it was closed even sooner
            sock.close()
            assert bystander.lookup(hash_of(1)) == (None,)
        assert bystander.stats()["counters"].get("internal_errors", 0) == 0


def test_one_client_too_many_is_told(server: ServerProcess) -> None:
    wait_until_alone(server)
    clients: list[RawClient] = []
    try:
        deadline = time.monotonic() + 60
        while len(clients) < LIMIT and time.monotonic() < deadline:
            clients.append(RawClient(server.record))
        with connect(server.record) as stranger:
            broken = m.encoder.encode(hello()).replace(b"test", b"\xff" * 4)
            stranger.sendall(HEADER.pack(len(broken), 0) + broken)
            assert is_closed(stranger)
        with connect(server.record) as sock:
            send(sock, hello())
            answer = receive(sock, m.to_client)[0]
            assert isinstance(answer, m.Failed)
            assert f"{LIMIT} clients" in answer.reason
        assert clients[0].lookup(hash_of(1)) == (None,)
    finally:
        for client in clients:
            client.close()
    wait_until_alone(server)
    assert works(server)


@pytest.mark.real_time
def test_a_frozen_client_delays_nobody(server: ServerProcess) -> None:
    """A client that sends many requests and never reads the responses blocks only its own thread."""
    with RawClient(server.record) as rude, RawClient(server.record) as client:
        (grant,) = rude.reserve((hash_of(5), m.MAX_CHUNK_BYTES))
        rude.ask(m.Commit(((grant.version, 0),)), m.Committed)
        rude.sock.settimeout(0.2)
        for _ in range(16):  # more than the kernel keeps for it; the server is stuck in one of its answers
            send(rude.sock, m.Read(((grant.version, 0, m.MAX_CHUNK_BYTES),)))
            time.sleep(0.02)
        start = time.monotonic()
        assert client.lookup(hash_of(1)) == (None,)
        assert client.get(hash_of(5)) is None, "its checksum was made up"
        assert time.monotonic() - start < 2
        client.ask(m.Forget("default"), m.Data)


def test_silent_ones_do_not_keep_clients_out(server: ServerProcess) -> None:
    silent = [connect_unproved(server.record) for _ in range(MOST_STRANGERS + 3 * LIMIT)]
    try:
        start = time.monotonic()
        assert works(server)
        assert is_closed(silent[0])
        assert time.monotonic() - start < HELLO_DEADLINE_S, "not only when their time was over"
    finally:
        for sock in silent:
            sock.close()

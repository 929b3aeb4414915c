"""Framing over a real socket pair: whole frames for any pieces, and an error for all other bytes."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from serving.errors import PoolError, PoolTimeoutError, PoolUnreachableError
from serving.kvpool.core import messages as m
from serving.kvpool.live.frames import HEADER, receive, send, tune

Pair = tuple[socket.socket, socket.socket]
_BODY = m.encoder.encode(m.Write(((1, 0, 9),)))
WRITE = HEADER.pack(len(_BODY), 9) + _BODY
"""A frame whose nine bytes of payload have not come yet."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    left.settimeout(60)
    right.settimeout(60)
    with left, right:
        yield left, right


def test_a_message_arrives(pair: Pair) -> None:
    send(pair[0], m.Forget("ns"))
    message, payload = receive(pair[1], m.to_server)
    assert message == m.Forget("ns")
    assert len(payload) == 0


def test_a_payload_of_several_buffers_arrives_in_the_given_place(pair: Pair) -> None:
    chunk = bytes(range(256)) * 4096
    sender = threading.Thread(target=send, args=(pair[0], m.Chunk(1), (chunk[:1000], memoryview(chunk)[1000:])))
    sender.start()
    target = memoryview(bytearray(m.MAX_CHUNK_BYTES + 10))
    message, payload = receive(pair[1], m.to_client, target)
    sender.join()
    assert message == m.Chunk(1)
    assert payload == chunk
    assert target[: len(chunk)] == chunk


def test_a_frame_may_come_byte_by_byte(pair: Pair) -> None:
    body = m.encoder.encode(m.Write(((7, 0, 3),)))
    wire = HEADER.pack(len(body), 3) + body + b"abc"

    def drip() -> None:
        for byte in wire:
            pair[0].send(bytes([byte]))
            time.sleep(0.001)

    dripper = threading.Thread(target=drip)
    dripper.start()
    message, payload = receive(pair[1], m.to_server)
    dripper.join()
    assert message == m.Write(((7, 0, 3),))
    assert bytes(payload) == b"abc"
    assert pair[1].gettimeout() == 60, "the caller's timeout is as it was"


@pytest.mark.real_time
def test_dripping_does_not_stretch_the_deadline(pair: Pair) -> None:
    body = m.encoder.encode(m.Forget("x" * 100))
    stop = threading.Event()

    def drip() -> None:
        for byte in HEADER.pack(len(body), 0) + body:
            if stop.wait(0.05):
                return
            pair[0].send(bytes([byte]))

    dripper = threading.Thread(target=drip)
    dripper.start()
    pair[1].settimeout(0.3)
    start = time.monotonic()
    with pytest.raises(PoolTimeoutError):
        receive(pair[1], m.to_server)
    assert time.monotonic() - start < 1.0
    stop.set()
    dripper.join()


def test_nothing_to_receive_is_a_timeout(pair: Pair) -> None:
    pair[1].settimeout(0.02)
    with pytest.raises(PoolTimeoutError):
        receive(pair[1], m.to_server)


def test_nobody_who_takes_it_is_a_timeout(pair: Pair) -> None:
    pair[0].settimeout(0.05)
    with pytest.raises(PoolTimeoutError):
        send(pair[0], m.Chunk(1), (bytes(m.MAX_CHUNK_BYTES),))


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", HEADER.pack(10, 0) + b"abc", WRITE + b"12"])
def test_an_end_of_the_stream_is_unreachable(pair: Pair, sent: bytes) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(PoolUnreachableError):
        receive(pair[1], m.to_server)


def test_sending_to_a_closed_socket_is_unreachable(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(PoolUnreachableError):
        send(pair[0], m.Stats())


def test_a_closed_socket_cannot_be_tuned() -> None:
    sock = socket.socket()
    sock.close()
    with pytest.raises(PoolUnreachableError):
        tune(sock)


@pytest.mark.parametrize(
    "wire",
    [
        HEADER.pack(m.MAX_BODY_BYTES + 1, 0),
        HEADER.pack(5, m.MAX_CHUNK_BYTES + 1),
        HEADER.pack(4, 0) + b"\xff\xff\xff\xff",
        HEADER.pack(0, 0),
        HEADER.pack(2, 0) + b"\x91\xa3",
        HEADER.pack(3, 0) + b"\x91\xa0\xa0",
        HEADER.pack(1, 0) + b"\x90" + b"more",
    ],
)
def test_nonsense_is_an_error(pair: Pair, wire: bytes) -> None:
    pair[0].sendall(wire)
    with pytest.raises(PoolError) as raised:
        receive(pair[1], m.to_server)
    assert type(raised.value) is PoolError


def test_limits_hold_before_anything_is_sent(pair: Pair) -> None:
    with pytest.raises(PoolError):
        send(pair[0], m.Chunk(1), (bytes(m.MAX_CHUNK_BYTES + 1),))
    with pytest.raises(PoolError):
        send(pair[0], m.Forget("x" * (m.MAX_BODY_BYTES + 1)))
    send(pair[0], m.Done())
    assert receive(pair[1], m.to_client)[0] == m.Done()


def test_a_stranger_is_trusted_with_little(pair: Pair) -> None:
    send(pair[0], m.Forget("x" * 5000))
    with pytest.raises(PoolError):
        receive(pair[1], m.to_server, max_body_bytes=4096)


def test_a_payload_larger_than_asked_for_is_an_error(pair: Pair) -> None:
    send(pair[0], m.Chunk(1), (b"12345",))
    with pytest.raises(PoolError):
        receive(pair[1], m.to_client, memoryview(bytearray(4)))


def test_text_that_is_not_utf_8_is_an_unreadable_frame(pair: Pair) -> None:
    body = m.encoder.encode(m.Forget("namespace")).replace(b"namespace", b"\xff" * 9)
    pair[0].sendall(HEADER.pack(len(body), 0) + body)
    with pytest.raises(PoolError, match="another protocol"):
        receive(pair[1], m.to_server)

"""A segment read over TCP, as by another host: bytes, bounds, deadlines, and accepted connections."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.ub.copy import checksum
from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from serving.errors import HandoffError, HandoffExpiredError, HandoffTimeoutError
from serving.instance.live import segment_reader
from serving.instance.live.segment_reader import CHUNK_BYTES, SegmentPlace, SegmentReader, chunks_of
from serving.instance.live.segment_server import SEGMENT_CHANNEL, SegmentServer
from serving.sockets.opening import open_proved
from serving.sockets.secrets import ClusterSecrets

TOTAL = 24 << 20
SECRETS = ClusterSecrets(("secret",))


class Host:
    """A segment with contents, and its server."""

    def __init__(self, folder: Path) -> None:
        self.segment = UbSegment.create(folder / "ub-other-host", TOTAL, max_regions=1)
        self.region: UbRegion = self.segment.allocate(TOTAL, owner="prefill")
        self.bytes = self.segment.view(self.region)
        self.bytes[:] = os.urandom(1 << 20) * (TOTAL >> 20)
        self.server = SegmentServer(self.segment, SECRETS)
        self.server.start("127.0.0.1")

    def place(self, generation: int | None = None) -> SegmentPlace:
        """Address of the segment."""
        path, own = str(self.segment.path), self.region.generation
        return SegmentPlace(*self.server.address, path, own if generation is None else generation)

    def extents(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Extents of these sizes, the last bytes first."""
        end, found = self.region.offset + TOTAL, []
        for size in sizes:
            end -= size
            found.append((end, size))
        return found

    def at(self, extent: tuple[int, int]) -> memoryview:
        """Bytes of an extent."""
        start = extent[0] - self.region.offset
        return self.bytes[start : start + extent[1]]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    found = Host(tmp_path_factory.mktemp("shm"))
    yield found
    found.server.stop(5.0)
    found.segment.remove()


@pytest.fixture
def reader() -> Iterator[SegmentReader]:
    one = SegmentReader(SECRETS, streams=1)
    yield one
    one.close()


def kept(reader: SegmentReader) -> Sequence[tuple[object, socket.socket]]:
    """Its unused open connections."""
    return reader._idle


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


SIZES: tuple[list[int], ...] = (
    [1],
    [4096] * 8,
    [43_008] * 300,
    [CHUNK_BYTES + 1, 5, CHUNK_BYTES],
    [0, 7, 0, 0, 1 << 20, 0],
    [],
)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_extents_arrive_in_their_places_with_their_checksums(
    host: Host, reader: SegmentReader, sizes: list[int]
) -> None:
    extents = host.extents(sizes)
    targets = [memoryview(bytearray(size)) for size in sizes]
    for _ in range(2):
        assert reader.read(host.place(), extents, targets) == [checksum(host.at(extent)) for extent in extents]
        assert all(target == host.at(extent) for target, extent in zip(targets, extents, strict=True))
    assert len(kept(reader)) == min(1, len(sizes)), "one connection is kept"


def test_a_large_read_uses_several_connections(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "STREAM_BYTES", 1 << 20)
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", 1 << 20)
    gate, plain, begun = threading.Barrier(3), segment_reader._ask, threading.local()

    def ask_once_all_have_connections(*arguments: object) -> None:
        if not hasattr(begun, "here"):  # a stream that is through would leave its connection to one that is late
            begun.here = True
            gate.wait(60.0)
        plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_reader, "_ask", ask_once_all_have_connections)
    sizes = [100_000] * 200
    extents, targets = host.extents(sizes), [memoryview(bytearray(size)) for size in sizes]
    with contextlib.closing(SegmentReader(SECRETS, streams=3)) as reader:
        assert reader.read(host.place(), extents, targets) == [checksum(host.at(extent)) for extent in extents]
        assert len(kept(reader)) == 3
        monkeypatch.setattr(segment_reader, "_ask", plain)
        with pytest.raises(HandoffExpiredError):
            reader.read(host.place(generation=99), extents, targets)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 100)), max_size=30), st.integers(1, 150))
def test_chunks_are_bounded_and_lose_nothing(extents: list[tuple[int, int]], parts: int) -> None:
    unit = CHUNK_BYTES // parts
    extents = [(offset, size * unit) for offset, size in extents]
    chunks = list(chunks_of(extents))
    assert [at for chunk in chunks for at in chunk] == list(range(len(extents)))
    for chunk in chunks:
        assert len(chunk) == 1 or sum(extents[at][1] for at in chunk) <= CHUNK_BYTES


def test_memory_that_is_gone_or_was_never_there(host: Host, reader: SegmentReader) -> None:
    target = [memoryview(bytearray(10))]
    place = host.place()
    for wrong in (
        host.place(generation=77),
        SegmentPlace(place.host, place.port, "/elsewhere", place.generation),
    ):
        with pytest.raises(HandoffExpiredError):
            reader.read(wrong, [(host.region.offset, 10)], target)
    with pytest.raises(HandoffExpiredError, match="outside"):
        reader.read(place, [(1 << 50, 10)], target)
    with pytest.raises(HandoffError, match="more than"):
        reader.read(place, [(0, 2 << 30)], [memoryview(b"")])
    assert reader.read(place, [(host.region.offset, 10)], target), "the connection is good for the next"


def test_a_kept_connection_that_was_closed_is_opened_anew(host: Host, reader: SegmentReader, shm: Path) -> None:
    extents, target = host.extents([10]), [memoryview(bytearray(10))]
    reader.read(host.place(), extents, target)
    kept(reader)[0][1].shutdown(socket.SHUT_RDWR)
    assert reader.read(host.place(), extents, target) == [checksum(host.at(extents[0]))]


def test_a_host_that_takes_no_connection_is_an_error(reader: SegmentReader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(HandoffError, match=f"127.0.0.1:{port} did not deliver"):
        reader.read(SegmentPlace("127.0.0.1", port, "/s", 1), [(0, 1)], [memoryview(bytearray(1))])


def test_a_host_that_falls_silent_is_a_timeout(
    host: Host, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "CHUNK_DEADLINE_S", 0.1)
    go_on = threading.Event()
    monkeypatch.setattr(host.server, "_look", lambda body: (go_on.wait(60.0), (1, []))[1])
    with pytest.raises(HandoffTimeoutError, match="did not deliver in time"):
        reader.read(host.place(), host.extents([1]), [memoryview(bytearray(1))])
    go_on.set()
    assert not kept(reader), "a late answer is never taken for another's"


def test_who_does_not_know_the_secret_reads_nothing(host: Host) -> None:
    stranger = SegmentReader(ClusterSecrets(("another",)), streams=1)
    with pytest.raises(HandoffError, match="wrong secret; take that of this cluster"):
        stranger.read(host.place(), host.extents([1]), [memoryview(bytearray(1))])


@pytest.mark.parametrize("sent", [b"\xff" * 8, b"\x05\0\0\0hello", b"\x03\0\0\0\xc0\xc0\xc0"])
def test_nonsense_ends_its_connection_only(host: Host, reader: SegmentReader, sent: bytes) -> None:
    with open_proved(host.server.address, SEGMENT_CHANNEL, "instance", SECRETS, 60.0) as sock:
        sock.sendall(sent)
        sock.settimeout(60.0)
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            pass
    assert reader.read(host.place(), host.extents([1]), [memoryview(bytearray(1))])


def test_connections_are_bounded_and_silent_ones_keep_nobody_out(
    host: Host, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor = host.server._acceptor
    monkeypatch.setattr(acceptor, "_limit", 2)
    until(lambda: acceptor.count == 0)
    silent = [socket.create_connection(host.server.address) for _ in range(70)]
    proved = [open_proved(host.server.address, SEGMENT_CHANNEL, "instance", SECRETS, 60.0) for _ in range(2)]
    # A client is through before the server has counted it.
    until(lambda: acceptor.proved == 2)
    with pytest.raises(HandoffError):
        reader.read(host.place(), host.extents([1]), [memoryview(bytearray(1))])
    silent[0].settimeout(60.0)
    assert silent[0].recv(1) == b"", "the oldest stranger had to go"
    for sock in [*silent, *proved]:
        sock.close()
    until(lambda: host.server._acceptor.count == 0)
    assert reader.read(host.place(), host.extents([1]), [memoryview(bytearray(1))])


def test_only_so_many_connections_are_kept(host: Host, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "KEPT_CONNECTIONS", 1)
    gate = threading.Barrier(3)
    plain = segment_reader._ask

    def ask_together(*arguments: object) -> None:
        gate.wait(60.0)
        plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_reader, "_ask", ask_together)
    work = [
        threading.Thread(target=reader.read, args=(host.place(), host.extents([9]), [memoryview(bytearray(9))]))
        for _ in range(3)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(kept(reader)) == 1


def test_a_server_that_moves_to_another_address_answers_at_both(shm: Path) -> None:
    with UbSegment.create(shm / "ub-moving", 1 << 20, max_regions=1) as segment:
        region = segment.allocate(4096, owner="prefill")
        server = SegmentServer(segment, SECRETS)
        first = server.start("127.0.0.1")
        server.move("127.0.0.1")
        assert server.address == first
        server.move("127.0.0.2")
        assert server.address == ("127.0.0.2", first[1])
        reader = SegmentReader(SECRETS)
        for host, port in (first, server.address):
            place = SegmentPlace(host, port, str(segment.path), region.generation)
            assert reader.read(place, [(region.offset, 5)], [memoryview(bytearray(5))])
        server.stop(30.0)
        reader.close()
        segment.remove()

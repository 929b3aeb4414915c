"""Reads another host's UB segment over TCP, directly into the local arena; the client of `segment_server.py`.

A request covers at most `CHUNK_BYTES`; the next is sent while the response to the previous one arrives, which hides the
round trip. Bytes are hashed on arrival, while they are in the cache. Large reads use several connections if there
are cores for them. Connections are kept for the next read; opening one takes a few round trips.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from msgspec import msgpack

from hardware.ub.copy import checksum
from serving.errors import ConfigError, HandoffError, HandoffExpiredError, HandoffTimeoutError, LinkError, in_words
from serving.instance.live.segment_server import ANSWER, LENGTH, PLACES, SEGMENT_CHANNEL, AnswerStatus, ReadSegment
from serving.sockets.bulk import receive_views, tune_bulk
from serving.sockets.opening import open_proved
from serving.sockets.secrets import ClusterSecrets

CHUNK_BYTES = 8 << 20
CHUNK_DEADLINE_S = 10.0
CONNECT_S = 5.0
STREAM_BYTES = 32 << 20
"""Minimum number of bytes per connection of one read: for fewer, another connection does not pay."""
MOST_STREAMS = 4
KEPT_CONNECTIONS = 64
"""Limit over all sources; the least recently used are closed."""
_REASON_BYTES = 4 << 10
Extents = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Address of a segment for other hosts, and its path on its own host."""

    host: str
    port: int
    path: str
    generation: int

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        return self.host, self.port


class SegmentReader:
    """Reads segments of other hosts. Thread-safe.

    Args:
        streams: connections that one large read may use.
    """

    def __init__(self, secrets: ClusterSecrets, streams: int = 0) -> None:
        self._secrets = secrets
        self._streams = streams or max(1, min(MOST_STREAMS, (os.cpu_count() or 1) // 4))
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, int], socket.socket]] = []
        """The most recently used is last."""
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def read(self, place: SegmentPlace, extents: Extents, targets: Sequence[memoryview]) -> list[int]:
        """Read extents, each into its target.

        Args:
            extents: offset and bytes in the segment.
            targets: writable bytes, as long as the extents.
        Returns: checksums of the received bytes.
        Raises: HandoffExpiredError if the segment or its region no longer exists, HandoffTimeoutError if no data
            arrives in time, HandoffError if its host refuses the connection or another process accepts it.
        Effects: fills targets; their content is undefined after an error.
        """
        if not extents:
            return []
        chunks = list(chunks_of(extents))
        total = sum(nbytes for _, nbytes in extents)
        streams = max(1, min(self._streams, total // STREAM_BYTES, len(chunks)))
        digests = [0] * len(extents)
        try:
            if streams == 1:
                self._read(place, extents, targets, chunks, digests)
            else:
                parts = [chunks[number::streams] for number in range(streams)]
                work = [self._pool().submit(self._read, place, extents, targets, part, digests) for part in parts[1:]]
                try:
                    self._read(place, extents, targets, parts[0], digests)
                finally:
                    ends = [one.exception() for one in work]
                for error in ends:
                    if error is not None:
                        raise error
        except TimeoutError as error:
            raise HandoffTimeoutError(f"{place.host}:{place.port} did not deliver in time") from error
        except (OSError, LinkError, ConfigError) as error:
            raise HandoffError(f"{place.host}:{place.port} did not deliver: {in_words(error)}") from error
        return digests

    def close(self) -> None:
        """Close all unused connections; those in use are closed after their read."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, sock in idle:
            sock.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2 * MOST_STREAMS, "segment-reader")
            return self._threads

    def _read(
        self,
        place: SegmentPlace,
        extents: Extents,
        targets: Sequence[memoryview],
        chunks: Sequence[range],
        digests: list[int],
    ) -> None:
        """Read chunks over one connection. If a kept one was closed, restart on a new one."""
        sock, kept = self._take(place.address)
        try:
            try:
                self._exchange(sock, place, extents, targets, chunks, digests)
            except (ConnectionError, BrokenPipeError):
                sock.close()
                if not kept:
                    raise
                sock = self._connect(place.address)
                self._exchange(sock, place, extents, targets, chunks, digests)
        except BaseException:
            sock.close()
            raise
        self._keep(place.address, sock)

    def _exchange(
        self,
        sock: socket.socket,
        place: SegmentPlace,
        extents: Extents,
        targets: Sequence[memoryview],
        chunks: Sequence[range],
        digests: list[int],
    ) -> None:
        for number, chunk in enumerate(chunks):
            deadline = time.monotonic() + CHUNK_DEADLINE_S
            if number == 0:
                _ask(sock, place, extents, chunk)
            if number + 1 < len(chunks):
                _ask(sock, place, extents, chunks[number + 1])
            _receive(sock, [targets[at] for at in chunk], deadline, digests, chunk.start)

    def _take(self, address: tuple[str, int]) -> tuple[socket.socket, bool]:
        """A connection. Returns: it, and whether it was used before."""
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == address:
                    return self._idle.pop(at)[1], True
        return self._connect(address), False

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        sock = open_proved(address, SEGMENT_CHANNEL, "instance", self._secrets, CONNECT_S)
        tune_bulk(sock)
        return sock

    def _keep(self, address: tuple[str, int], sock: socket.socket) -> None:
        surplus = sock
        with self._lock:
            if not self._closed:
                self._idle.append((address, sock))
                if len(self._idle) <= KEPT_CONNECTIONS:
                    return
                surplus = self._idle.pop(0)[1]
        surplus.close()


def chunks_of(extents: Extents) -> Iterator[range]:
    """Indices of extents per request: at most `CHUNK_BYTES`, at least one."""
    begin = size = 0
    for index, (_, nbytes) in enumerate(extents):
        if index > begin and size + nbytes > CHUNK_BYTES:
            yield range(begin, index)
            begin, size = index, 0
        size += nbytes
    if extents:
        yield range(begin, len(extents))


def _ask(sock: socket.socket, place: SegmentPlace, extents: Extents, chunk: range) -> None:
    places = np.array([extents[at] for at in chunk], PLACES).tobytes()
    body = msgpack.encode(ReadSegment(place.path, place.generation, places))
    sock.settimeout(CHUNK_DEADLINE_S)
    sock.sendall(LENGTH.pack(len(body)) + body)


def _receive(
    sock: socket.socket, targets: Sequence[memoryview], deadline: float, digests: list[int], first: int
) -> None:
    """Receive one response into its targets. Raises: as `SegmentReader.read`, and as sockets do."""
    head = bytearray(ANSWER.size)
    receive_views(sock, [memoryview(head)], deadline)
    status, nbytes = ANSWER.unpack(head)
    if status != AnswerStatus.BYTES:
        reason = bytearray(min(nbytes, _REASON_BYTES))
        receive_views(sock, [memoryview(reason)], deadline)
        kind = HandoffExpiredError if status == AnswerStatus.EXPIRED else HandoffError
        raise kind(f"the other host could not read: {reason.decode(errors='replace')}")
    if nbytes != sum(map(len, targets)):
        raise HandoffError(f"{nbytes} bytes arrived where {sum(map(len, targets))} were requested")

    def hash_one(at: int) -> None:
        digests[first + at] = checksum(targets[at])

    receive_views(sock, targets, deadline, hash_one)

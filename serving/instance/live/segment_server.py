"""Serves an instance's own UB segment to other hosts over TCP, directly from shared memory into the socket.

One thread accepts, and each connection has its own; a request is handled before the next is read. Readers on the same
host map the segment instead.

    request   u32 length | MessagePack of `ReadSegment`
    response  u32 status | u64 bytes | the extents' bytes, one after the other; or the reason      little endian
"""

import logging
import socket
import struct
import time
from enum import IntEnum

import msgspec
import numpy as np

from hardware.errors import HardwareError
from hardware.ub.segment import UbSegment
from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import UNREADABLE, ConfigError, LinkError
from serving.sockets.acceptor import Acceptor
from serving.sockets.bulk import receive_views, send_views, tune_bulk
from serving.sockets.opening import accept_proved, secured
from serving.sockets.proof import Channel, Verifier
from serving.sockets.secrets import ClusterSecrets

logger = logging.getLogger(__name__)

SEGMENT_CHANNEL = Channel("segment", 1, frozenset({"instance"}))
MOST_READERS = 128
GREETING_S = 5.0
MAX_REQUEST_BYTES = 2 << 20
"""Limit of the body: 65,536 extents take 1 MiB."""
MAX_ANSWER_BYTES = 1 << 30
ANSWER_S = 30.0
"""Timeout for a reader to receive a response, and for a request to be complete."""
LENGTH = struct.Struct("<I")
ANSWER = struct.Struct("<IQ")
PLACES = np.dtype([("offset", "<u8"), ("nbytes", "<u8")])


class ReadSegment(msgspec.Struct, frozen=True, array_like=True):
    """Read extents of a segment. `places`: of `PLACES`; `generation`: of the region that contains them."""

    segment: str
    generation: int
    places: bytes


class AnswerStatus(IntEnum):
    """Status of a response."""

    BYTES = 0
    EXPIRED = 1
    """The segment or its region no longer exists; retries get the same response."""
    REFUSED = 2


class SegmentServer:
    """Serves one segment. `start` once, `stop` once.

    Args:
        segment: stays open until `stop` has returned.
    """

    def __init__(self, segment: UbSegment, secrets: ClusterSecrets) -> None:
        self._segment = segment
        self._secrets = secrets
        self._acceptor = Acceptor("segment", MOST_READERS, self._serve)

    @property
    def address(self) -> tuple[str, int]:
        """Address for readers of other hosts; ("", 0) before `start`."""
        return self._acceptor.address

    @property
    def readers(self) -> int:
        """Current number of connections from other hosts."""
        return self._acceptor.count

    def start(self, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host`.

        Returns: the address bound.
        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        return self._acceptor.start(host, ports)

    def move(self, host: str) -> None:
        """Also listen on another address of this host, and report that one from now on.

        Raises: as `start`.
        """
        self._acceptor.move(host)

    def stop(self, timeout_s: float) -> None:
        """Close every connection, and wait for the threads until the timeout [s]."""
        self._acceptor.stop(timeout_s)

    def _serve(self, raw: socket.socket) -> None:
        sock = raw
        try:
            sock, binding = secured(raw)
            tune_bulk(sock)
            with self._acceptor.watched(raw, sock):
                accept_proved(sock, Verifier(SEGMENT_CHANNEL, self._secrets, binding), time.monotonic() + GREETING_S)
                if not self._acceptor.accepted(raw):
                    raise LinkError(f"there are {MOST_READERS} of them already")
                while self._answer(sock):
                    pass
        except (LinkError, ConfigError) as error:
            logger.warning("a reader of the segment is refused: %s", error)
        except OSError as error:
            logger.debug("a reader of the segment disconnected: %s", error)
        finally:
            sock.close()

    def _answer(self, sock: socket.socket) -> bool:
        """Handle one request. Returns: whether another may follow."""
        sock.settimeout(None)
        first = sock.recv(LENGTH.size)
        if not first:
            return False
        deadline = time.monotonic() + ANSWER_S
        head = bytearray(LENGTH.size)
        head[: len(first)] = first
        receive_views(sock, [memoryview(head)[len(first) :]], deadline)
        (size,) = LENGTH.unpack(head)
        if size > MAX_REQUEST_BYTES:
            raise LinkError(f"announced a request of {size} bytes")
        body = bytearray(size)
        receive_views(sock, [memoryview(body)], deadline)
        status, views = self._look(body)
        nbytes = sum(map(len, views))
        send_views(sock, [memoryview(ANSWER.pack(status, nbytes)), *views], time.monotonic() + ANSWER_S)
        return True

    def _look(self, body: bytearray) -> tuple[AnswerStatus, list[memoryview]]:
        try:
            asked = _decoder.decode(body)
            places = np.frombuffer(asked.places, PLACES)
        except (*UNREADABLE, ValueError) as error:
            raise LinkError(f"an unreadable request: {error}") from error
        if asked.segment != str(self._segment.path):
            return AnswerStatus.EXPIRED, [_text(f"segment {asked.segment} is not or no longer served here")]
        if int(places["nbytes"].sum()) > MAX_ANSWER_BYTES:
            return AnswerStatus.REFUSED, [_text(f"more than {MAX_ANSWER_BYTES} bytes in one request")]
        try:
            read, generation = self._segment.read, asked.generation
            return AnswerStatus.BYTES, [read(offset, nbytes, generation) for offset, nbytes in places.tolist()]
        except HardwareError as error:
            return AnswerStatus.EXPIRED, [_text(str(error))]


_decoder = msgspec.msgpack.Decoder(ReadSegment)


def _text(reason: str) -> memoryview:
    return memoryview(reason.encode()[:1000])

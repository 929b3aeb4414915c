"""A minimal client of a memory server: frames in and out, bytes through the mapped segment. For tests of the server."""

import socket
from types import TracebackType
from typing import Any, Self, TypeVar

from hardware.ub.copy import Hashed, checksum, copy_checked
from hardware.ub.process import ProcessStamp
from hardware.ub.segment import UbSegment
from serving.ids import BlockHash, NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Found, Grant, GrantStatus, Kind, Space
from serving.kvpool.live.frames import POOL_CHANNEL, receive, send, tune
from serving.sockets.opening import open_proved
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import ServerRecord

_M = TypeVar("_M", bound=m.Message)

SPACE = Space("default", "layout-1")
TIMEOUT_S = 60.0


def hash_of(number: int) -> BlockHash:
    """A distinct 16-byte hash."""
    return BlockHash(number.to_bytes(16, "big"))


def connect_unproved(record: ServerRecord) -> socket.socket:
    """A tuned socket to a server, before any proof of the secret."""
    sock = socket.create_connection((record.host, record.port), timeout=TIMEOUT_S)
    tune(sock)
    return sock


def connect(record: ServerRecord, secret: str = "secret") -> socket.socket:
    """A tuned socket to a server, before any `Hello`."""
    address = (record.host, record.port)
    sock = open_proved(address, POOL_CHANNEL, "client", ClusterSecrets((secret,)), TIMEOUT_S)
    tune(sock)
    sock.settimeout(TIMEOUT_S)
    return sock


def hello(node: str = "n0", process: ProcessStamp | None = None, **changes: Any) -> m.Hello:
    """A `Hello` of this process."""
    stamp = process or ProcessStamp.own()
    return m.Hello("test", NodeId(node), stamp.pid, stamp.start_ticks, stamp.pid_namespace, **changes)


class RawClient:
    """One connection, and the server's segment mapped."""

    def __init__(self, record: ServerRecord, greeting: m.Hello | None = None) -> None:
        self.sock = connect(record)
        self.welcome = self.ask(greeting or hello(), m.Welcome)
        self.segment = UbSegment.attach(self.welcome.segment)
        (region,) = self.segment.regions()
        self.base = region.offset
        self.memory = self.segment.view(region)

    def ask(self, message: m.Message, answer: type[_M], payload: bytes = b"", into: memoryview | None = None) -> _M:
        """Send a request; asserts the type of the response."""
        reply, self.payload = self.exchange(message, payload, into)
        assert isinstance(reply, answer), reply
        return reply

    def exchange(
        self, message: m.Message, payload: bytes = b"", into: memoryview | None = None
    ) -> tuple[m.ToClient, memoryview]:
        """Send a request and return any response."""
        send(self.sock, message, (payload,) if payload else ())
        return receive(self.sock, m.to_client, into)

    def lookup(self, *hashes: BlockHash, space: Space = SPACE) -> tuple[Found | None, ...]:
        """Look these hashes up."""
        return self.ask(m.Lookup(space, hashes, 5.0), m.Looked).found

    def reserve(self, *items: tuple[BlockHash, int], space: Space = SPACE, kind: Kind = Kind.CONTEXT) -> list[Grant]:
        """Reserve extents for these hashes."""
        return list(self.ask(m.Reserve(space, kind, items), m.Reserved).grants)

    def put(self, block_hash: BlockHash, data: bytes, space: Space = SPACE, kind: Kind = Kind.CONTEXT) -> GrantStatus:
        """Store bytes through the segment."""
        (grant,) = self.reserve((block_hash, len(data)), space=space, kind=kind)
        if grant.status is GrantStatus.GRANTED:
            assert self.finish(grant, data)
        return grant.status

    def finish(self, grant: Grant, data: bytes) -> bool:
        """Write the granted extents and commit them."""
        digest = copy_checked(self.at(grant.offset, len(data)), data, hashed=Hashed.SOURCE)
        return self.ask(m.Commit(((grant.version, digest),)), m.Committed).ok == (True,)

    def get(self, block_hash: BlockHash, space: Space = SPACE, wait_s: float = 10.0) -> bytes | None:
        """The verified bytes; None if they are missing or wrong."""
        (found,) = self.lookup(block_hash, space=space)
        if found is not None and found.tier is EntryTier.SSD:
            (found,) = self.ask(m.Promote((found.version,), wait_s), m.Promoted).found
        if found is None:
            return None
        data = bytes(self.at(found.offset, found.nbytes))
        self.ask(m.ReleaseLeases((found.version,)), m.Done)
        return data if checksum(data) == found.checksum else None

    def at(self, offset: int, nbytes: int) -> memoryview:
        """Writable bytes of the segment, at an offset of its file."""
        return self.memory[offset - self.base : offset - self.base + nbytes]

    def stats(self) -> dict[str, Any]:
        """Counters of the server."""
        return self.ask(m.Stats(), m.Data).value

    def audit(self, repair: bool = False) -> dict[str, Any]:
        """Audit of the server."""
        return self.ask(m.Audit(repair), m.Data).value

    def close(self) -> None:
        """End the connection and the mapping."""
        self.sock.close()
        self.segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

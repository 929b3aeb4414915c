"""Frames between a pool client and a memory server, as values.

A connection carries one request at a time; each gets exactly one reply, in order. The server answers anything it cannot
do with `Failed` and closes only on nonsense. A frame on the wire:

    u32 body length | u32 payload length | body (MessagePack) | payload (raw bytes)          little endian

Payload is empty except where said: it carries bytes of entries between nodes, at most `MAX_CHUNK_BYTES`. On
one node nobody sends payload: bytes are read and written in the server's UB segment.
"""

from typing import Any

import msgspec

from serving.ids import BlockHash, NodeId
from serving.kvpool.core.entry import Found, Grant, Kind, Space
from serving.values.pool_view import NamespaceRecord

PROTOCOL = 2
MAX_BODY_BYTES = 8 << 20
MAX_CHUNK_BYTES = 8 << 20
MAX_ITEMS = 65_536
"""Hashes or versions in one request."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all frames; its subclasses are the tagged union."""


class Hello(Message, frozen=True):
    """First frame of a client that has proved the secret.

    `pid` and `start_ticks` let the server see whether a process of its own node lives.
    """

    client: str
    node: NodeId
    pid: int
    start_ticks: int
    pid_namespace: int


class Welcome(Message, frozen=True):
    """Answer to `Hello`. `client` is the number under which this connection's leases are booked."""

    server: str
    incarnation: str
    node: NodeId
    segment: str
    generation: int
    client: int


class Lookup(Message, frozen=True):
    """Which of these are there? Found ones are leased to this connection for `lease_s`, bounded by the server."""

    space: Space
    hashes: tuple[BlockHash, ...]
    lease_s: float


class Looked(Message, frozen=True):
    """Answer to `Lookup`: one item per hash, None = absent."""

    found: tuple[Found | None, ...]


class Promote(Message, frozen=True):
    """Bring leased entries from SSD to DRAM; answered when each is there or cannot be. `wait_s` 0 = a hint, no wait."""

    versions: tuple[int, ...]
    wait_s: float


class Promoted(Message, frozen=True):
    """Answer to `Promote`: the entries as they are now; None = gone, unreadable, or not ready in time."""

    found: tuple[Found | None, ...]


class ReleaseLeases(Message, frozen=True, tag="Release"):
    """The leases of these versions are not needed any more. Answered by `Done`."""

    versions: tuple[int, ...]


class Report(Message, frozen=True):
    """These versions had wrong bytes: the server checks them itself and removes what is wrong. Answered by `Done`."""

    versions: tuple[int, ...]


class Reserve(Message, frozen=True):
    """Room for new entries, please: (hash, bytes) each."""

    space: Space
    kind: Kind
    items: tuple[tuple[BlockHash, int], ...]


class Reserved(Message, frozen=True):
    """Answer to `Reserve`, one grant per item."""

    grants: tuple[Grant, ...]


class Commit(Message, frozen=True):
    """The bytes are written: (version, checksum) each. Visible to everybody from the answer on."""

    items: tuple[tuple[int, int], ...]


class Committed(Message, frozen=True):
    """Answer to `Commit`: whether each was still reserved for this client."""

    ok: tuple[bool, ...]


class Abort(Message, frozen=True):
    """Reserved room that will not be written. Answered by `Done`."""

    versions: tuple[int, ...]


class Hold(Message, frozen=True):
    """Keep these leased entries in DRAM at their place until the client's *process* ends or `Unhold`: it maps them.

    Answered by `Done`. The connection may break meanwhile; only processes of the server's node may hold.
    """

    versions: tuple[int, ...]


class Unhold(Message, frozen=True):
    """End of `Hold`. Answered by `Done`."""

    versions: tuple[int, ...]


Piece = tuple[int, int, int]
"""Bytes of an entry: version, first byte, number of bytes."""


class Read(Message, frozen=True):
    """Bytes of leased entries, for clients of other nodes. Answered by `Chunk` with payload."""

    pieces: tuple[Piece, ...]


class Chunk(Message, frozen=True):
    """Answer to `Read`; the payload is the bytes of the first `pieces`: the one behind them is not there (any more)."""

    pieces: int


class Write(Message, frozen=True):
    """Bytes of reserved entries, for clients of other nodes; the payload is the bytes. Answered by `Written`."""

    pieces: tuple[Piece, ...]


class Written(Message, frozen=True):
    """Answer to `Write`: whether each piece lies in its place; if not, its entry is not reserved (any more)."""

    ok: tuple[bool, ...]


class ListedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One committed entry of a listing. `last_use_age_s` counts back from now."""

    version: int
    space: Space
    hash: BlockHash
    kind: Kind
    nbytes: int
    in_dram: bool
    on_ssd: bool
    last_use_age_s: float


class List(Message, frozen=True):
    """Committed entries with versions above `after`, in order of version, at most `limit`. Answered by `Listed`."""

    after: int
    limit: int


class Listed(Message, frozen=True):
    """Answer to `List`; fewer than the limit = that was all."""

    entries: tuple[ListedEntry, ...]


class Drop(Message, frozen=True):
    """Entries that now live elsewhere: remove them unless others use them. Answered by `Committed`: which went."""

    versions: tuple[int, ...]


class AskUsage(Message, frozen=True, tag="Usage"):
    """Ask for each namespace's holdings here. Answered by `Data` ({namespace: {dram_bytes, ssd_bytes, entries}})."""


class Forget(Message, frozen=True):
    """Delete everything of a namespace. Answered by `Data` ({bytes, entries})."""

    namespace: str


class SetNamespaces(Message, frozen=True):
    """The namespaces and their share of quota on this very server [bytes]. Answered by `Done`."""

    namespaces: tuple[NamespaceRecord, ...]


class Stats(Message, frozen=True):
    """Counters and gauges. Answered by `Data`."""


class Audit(Message, frozen=True):
    """Prove that ledger, segment and SSD directory agree. `repair` removes what is wrong. Answered by `Data`."""

    repair: bool = False


class Done(Message, frozen=True):
    """Answer: done."""


class Data(Message, frozen=True):
    """A JSON-like answer."""

    value: dict[str, Any]


class Failed(Message, frozen=True):
    """Answer: not done."""

    reason: str


ToServer = (
    Hello
    | Lookup
    | Promote
    | ReleaseLeases
    | Report
    | Reserve
    | Commit
    | Abort
    | Hold
    | Unhold
    | Read
    | Write
    | List
    | Drop
    | AskUsage
    | Forget
    | SetNamespaces
    | Stats
    | Audit
)
ANSWERS: dict[type[Message], type[Message]] = {
    Lookup: Looked,
    Promote: Promoted,
    Reserve: Reserved,
    Commit: Committed,
    List: Listed,
    Drop: Committed,
}
"""The only answer that makes sense, where a client needs more of it than `Done`."""

ToClient = Welcome | Looked | Promoted | Reserved | Committed | Chunk | Written | Listed | Done | Data | Failed

encoder = msgspec.msgpack.Encoder()
to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)

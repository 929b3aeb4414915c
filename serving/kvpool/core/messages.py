"""Frames between a pool client and a memory server, as values.

A connection carries one request at a time; each gets exactly one response, in order. The server responds with `Failed`
to a request that it cannot carry out, and closes the connection only after malformed frames. A frame on the wire:

    u32 body length | u32 payload length | body (MessagePack) | payload (raw bytes)          little endian

The payload is empty except where noted. It carries bytes of entries between nodes, at most `MAX_CHUNK_BYTES`. Within a
node no payload is sent: clients read and write bytes in the server's UB segment.
"""

from typing import Any

import msgspec

from serving.ids import BlockHash, NodeId
from serving.kvpool.core.entry import Found, Grant, Kind, Space
from serving.values.kv_hints import BlockClaim, HintAction, HintOutcome, SessionFacts
from serving.values.pool_view import NamespaceRecord

PROTOCOL = 3
"""Version of these frames. When to raise it: see `PROTOCOL` in `serving/wire/messages.py`."""
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
    """Response to `Hello`. `client` is the number under which this connection's leases are booked."""

    server: str
    incarnation: str
    node: NodeId
    segment: str
    generation: int
    client: int


class Lookup(Message, frozen=True):
    """Look entries up. Found ones are leased to this connection for `lease_s`, bounded by the server."""

    space: Space
    hashes: tuple[BlockHash, ...]
    lease_s: float


class Looked(Message, frozen=True):
    """Response to `Lookup`: one item per hash, None = absent."""

    found: tuple[Found | None, ...]


class Peek(Message, frozen=True):
    """Ask for the tiers of entries of a space, for information: nothing is leased, and nothing counts as used."""

    namespace: str
    layout: str
    hashes: tuple[BlockHash, ...]


class Peeked(Message, frozen=True):
    """Response to `Peek`: one byte per hash, the sum of 1 = in DRAM and 2 = on SSD."""

    tiers: bytes


class Promote(Message, frozen=True):
    """Load leased entries from SSD to DRAM; the response waits for the loads. `wait_s` 0 = a hint, without waiting."""

    versions: tuple[int, ...]
    wait_s: float


class Promoted(Message, frozen=True):
    """Response to `Promote`: the entries as they are now; None = removed, unreadable, or not ready in time."""

    found: tuple[Found | None, ...]


class Prefetch(Message, frozen=True):
    """Load blocks from SSD to DRAM before a reader looks them up; nothing is leased, nothing waits for the loads."""

    space: Space
    hashes: tuple[BlockHash, ...]


class Prefetched(Message, frozen=True):
    """Response to `Prefetch`: blocks in DRAM, on their way there, not on this server, and beyond a limit."""

    in_memory: int
    loading: int
    missing: int
    refused: int = 0


class ReleaseLeases(Message, frozen=True, tag="Release"):
    """Release the leases of these versions. Response: `Done`."""

    versions: tuple[int, ...]


class Report(Message, frozen=True):
    """Report versions with wrong bytes: the server verifies them and removes those that are wrong. Response: `Done`."""

    versions: tuple[int, ...]


class Reserve(Message, frozen=True):
    """Reserve room for new entries: (hash, bytes) each."""

    space: Space
    kind: Kind
    items: tuple[tuple[BlockHash, int], ...]


class Reserved(Message, frozen=True):
    """Response to `Reserve`, one grant per item."""

    grants: tuple[Grant, ...]


class Commit(Message, frozen=True):
    """Commit written entries: (version, checksum) each. Lookups of all clients find them after the response."""

    items: tuple[tuple[int, int], ...]


class Committed(Message, frozen=True):
    """Response to `Commit`: whether each was still reserved for this client."""

    ok: tuple[bool, ...]


class Abort(Message, frozen=True):
    """Return reserved room. Response: `Done`."""

    versions: tuple[int, ...]


class Hold(Message, frozen=True):
    """Keep these leased entries in DRAM at their place, mapped, until the client's *process* ends or `Unhold`.

    Response: `Done`. A hold survives its connection. Only processes of the server's node may hold entries.
    """

    versions: tuple[int, ...]


class Unhold(Message, frozen=True):
    """End of `Hold`. Response: `Done`."""

    versions: tuple[int, ...]


Piece = tuple[int, int, int]
"""Bytes of an entry: version, first byte, number of bytes."""


class Read(Message, frozen=True):
    """Read bytes of leased entries, for clients of other nodes. Response: `Chunk` with payload."""

    pieces: tuple[Piece, ...]


class Chunk(Message, frozen=True):
    """Response to `Read`; the payload is the bytes of the first `pieces`: the server lacks the next one (by now)."""

    pieces: int


class Write(Message, frozen=True):
    """Write bytes of reserved entries, for clients of other nodes; the payload is the bytes. Response: `Written`."""

    pieces: tuple[Piece, ...]


class Written(Message, frozen=True):
    """Response to `Write`: whether each piece is in place; if not, its entry is not reserved (any more)."""

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
    """List committed entries with versions above `after`, in order of version, at most `limit`. Response: `Listed`."""

    after: int
    limit: int


class Listed(Message, frozen=True):
    """Response to `List`; fewer than the limit = the last page."""

    entries: tuple[ListedEntry, ...]


class Drop(Message, frozen=True):
    """Remove entries that were moved to other servers, unless in use. Response: `Committed`, which are removed."""

    versions: tuple[int, ...]


class Claim(Message, frozen=True):
    """Claim blocks for sessions, and supersede older leaves. Response: `Hinted`, one outcome per claim."""

    space: Space
    claims: tuple[BlockClaim, ...]


class Hint(Message, frozen=True):
    """Carry out actions on a namespace's blocks, in this order. Response: `Hinted`, one outcome per action."""

    namespace: str
    actions: tuple[HintAction, ...]


class Hinted(Message, frozen=True):
    """Response to `Claim` and `Hint`. Counts are of blocks on this server."""

    outcomes: tuple[HintOutcome, ...]


class AskClaims(Message, frozen=True):
    """Request the claims of entries that are about to move. Response: `ClaimsTold`."""

    versions: tuple[int, ...]


class ClaimsTold(Message, frozen=True):
    """Response to `AskClaims`."""

    claims: tuple[BlockClaim, ...]


class AskSessions(Message, frozen=True):
    """List a namespace's sessions, the latest claim first, at most `limit`. Response: `SessionsListed`."""

    namespace: str
    limit: int


class SessionsListed(Message, frozen=True):
    """Response to `AskSessions`."""

    sessions: tuple[SessionFacts, ...]


class AskUsage(Message, frozen=True, tag="Usage"):
    """Request each namespace's holdings. Response: `Data` ({namespace: {dram_bytes, ssd_bytes, entries}})."""


class Forget(Message, frozen=True):
    """Delete all entries of a namespace. Response: `Data` ({bytes, entries})."""

    namespace: str


class SetNamespaces(Message, frozen=True):
    """Set the namespaces and their share of quota on this server [bytes]. Response: `Done`."""

    namespaces: tuple[NamespaceRecord, ...]


class Stats(Message, frozen=True):
    """Request counters and gauges. Response: `Data`."""


class Audit(Message, frozen=True):
    """Verify that ledger, segment and SSD directory agree. `repair` removes what is wrong. Response: `Data`."""

    repair: bool = False


class Done(Message, frozen=True):
    """Response: the request was carried out."""


class Data(Message, frozen=True):
    """A JSON-like response."""

    value: dict[str, Any]


class Failed(Message, frozen=True):
    """Response: the request was not carried out."""

    reason: str


ToServer = (
    Hello
    | Lookup
    | Peek
    | Promote
    | Prefetch
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
    | Claim
    | Hint
    | AskClaims
    | AskSessions
    | AskUsage
    | Forget
    | SetNamespaces
    | Stats
    | Audit
)
ANSWERS: dict[type[Message], type[Message]] = {
    Lookup: Looked,
    Peek: Peeked,
    Promote: Promoted,
    Prefetch: Prefetched,
    Reserve: Reserved,
    Commit: Committed,
    List: Listed,
    Drop: Committed,
    Claim: Hinted,
    Hint: Hinted,
    AskClaims: ClaimsTold,
    AskSessions: SessionsListed,
}
"""Expected type of response, for requests whose response has more information than `Done`."""

ToClient = (
    Welcome
    | Looked
    | Peeked
    | Promoted
    | Prefetched
    | Reserved
    | Committed
    | Chunk
    | Written
    | Listed
    | Hinted
    | ClaimsTold
    | SessionsListed
    | Done
    | Data
    | Failed
)

encoder = msgspec.msgpack.Encoder()
to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)

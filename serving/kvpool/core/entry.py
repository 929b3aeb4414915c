"""Entries of a memory server as values: the words that its ledger, its wire and its clients share.

Those that are sent for every block are msgspec structs, because they are encoded and decoded by the hundred.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from serving.ids import BlockHash
from serving.kvpool.core.quotas import Account


class Space(msgspec.Struct, frozen=True, array_like=True):
    """Space of hashes. Equal hashes of different spaces are different entries.

    Args:
        namespace: the tenant; quotas and usage count per namespace.
        layout: model, weights, dtype and block shape. Readers cannot use bytes of another layout.
    """

    namespace: str
    layout: str


class Kind(Enum):
    """Purpose of an entry. Readers treat all kinds the same, statistics and eviction do not."""

    CONTEXT = "context"
    """KV blocks."""
    MODEL = "model"
    """A model's weights, one entry a version: evicted whole, and only when no process maps it."""


class EntryTier(Enum):
    """Where an entry's bytes can be had."""

    DRAM = "dram"
    SSD = "ssd"


class Found(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry that a lookup found, leased to the client of the lookup.

    Args:
        version: identifies this copy on its server; a later copy of the same hash has another version.
        offset: of its bytes in the server's UB segment; -1 while they are on SSD only.
        checksum: xxh3-64 of the bytes.
    """

    hash: BlockHash
    version: int
    tier: EntryTier
    offset: int
    nbytes: int
    checksum: int


class GrantStatus(Enum):
    """Outcome of a wish to write."""

    GRANTED = "granted"
    """Write to `offset`, then commit before the lease ends."""
    PRESENT = "present"
    """The entry exists, or another client is writing it."""
    FULL = "full"
    """No room now: drop the block."""
    QUOTA = "quota"
    """The namespace holds all that it may."""
    TOO_LARGE = "too large"
    """Larger than the whole server."""


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Result for one reserved item; `version` and `offset` are valid only if it is granted."""

    status: GrantStatus
    version: int = 0
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Spill:
    """Write these bytes to SSD, then report `spilled`. The extent stays as it is until then."""

    version: int
    space: Space
    hash: BlockHash
    kind: Kind
    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class LoadFromSsd:
    """Read this entry from SSD into the extent, verify its checksum, then report `loaded`."""

    version: int
    space: Space
    hash: BlockHash
    kind: Kind
    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Unlink:
    """Remove this entry's bytes from SSD, without a report."""

    space: Space
    hash: BlockHash
    kind: Kind


Order = Spill | LoadFromSsd | Unlink
"""Work that a memory server's ledger orders from its driver. Orders of one entry must be carried out in sequence."""


# One entry of a memory server, from its reservation until its last byte is free.
#
# writing ──commit──► in DRAM ◄──load── on SSD
#    │                  │  └───spill───►   │          both at once = clean: it may leave DRAM at any moment
#    └──abort, expiry───┴───── hidden ─────┘          hidden = no lookup finds it; freed when its extent is unused


class Entry(msgspec.Struct, eq=False, gc=False):
    """The ledger's own record, used by the ledger's modules only.

    The garbage collector does not visit it, because there are hundreds of thousands, one for every stored block. So no
    object that an entry references may reference the entry.

    Attributes:
        offset: of its extent in the region; -1 = it has none.
        shown: lookups find it, from its commit until it is hidden.
        answer: the result of its last lookup, if still valid; see `as_found`.
        writer: the client that writes it; None once it is committed.
        leaving: the running spill frees its extent at the end.
        used_since: it was used since that spill started.
        claims: runs of claimed blocks that have it. guards: those that keep it in memory; see `guards.py`.
        leases: number of clients that lease it. holders: processes that hold it; None = none, the usual case.
    """

    version: int
    space: Space
    hash: BlockHash
    kind: Kind
    nbytes: int
    account: Account
    offset: int = -1
    checksum: int = 0
    writer: int | None = None
    answer: Found | None = None
    shown: bool = False
    in_dram: bool = False
    on_ssd: bool = False
    loading: bool = False
    spilling: bool = False
    leaving: bool = False
    used_since: bool = False
    hidden: bool = False
    leases: int = 0
    holders: set[int] | None = None
    last_use: float = 0.0
    hits: int = 0
    claims: int = 0
    guards: int = 0

    @property
    def pinned(self) -> bool:
        """Whether its extent must stay as it is."""
        return bool(
            self.leases or self.holders or self.spilling or self.loading or self.hidden or self.writer is not None
        )

    def as_found(self, base_offset: int) -> Found:
        """Result of a lookup. Made at the first lookup, which most entries never have, and kept in `answer`.

        A change of its tier must clear `answer`.
        """
        if self.answer is None:
            tier, offset = (EntryTier.DRAM, base_offset + self.offset) if self.in_dram else (EntryTier.SSD, -1)
            self.answer = Found(self.hash, self.version, tier, offset, self.nbytes, self.checksum)
        return self.answer


@dataclass(frozen=True, slots=True)
class EntryView:
    """A committed entry as audits, listings and migrations use it.

    Args:
        offset: in the segment; -1 = not in DRAM.
        leased: a client leases it or a process holds it.
        last_use: the `now` of its last lookup or of its commit.
        hits: lookups that found it.
    """

    version: int
    space: Space
    hash: BlockHash
    kind: Kind
    nbytes: int
    checksum: int
    in_dram: bool
    offset: int
    on_ssd: bool
    leased: bool
    last_use: float
    hits: int


def view_of(entry: Entry, base_offset: int) -> EntryView:
    """Public view of an entry."""
    return EntryView(
        version=entry.version,
        space=entry.space,
        hash=entry.hash,
        kind=entry.kind,
        nbytes=entry.nbytes,
        checksum=entry.checksum,
        in_dram=entry.in_dram,
        offset=base_offset + entry.offset if entry.in_dram else -1,
        on_ssd=entry.on_ssd,
        leased=bool(entry.leases or entry.holders),
        last_use=entry.last_use,
        hits=entry.hits,
    )

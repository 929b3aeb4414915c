"""One entry of a memory server, from its reservation until its last byte is free.

writing ──commit──► in DRAM ◄──load── on SSD
   │                  │  └───spill───►   │          both at once = clean: it may leave DRAM at any moment
   └──abort, expiry───┴───── hidden ─────┘          hidden = no lookup finds it; freed when its extent is unused
"""

from dataclasses import dataclass

import msgspec

from serving.ids import BlockHash
from serving.kvpool.core.entry import EntryTier, Found, Kind, Space
from serving.kvpool.core.quotas import Account


class Entry(msgspec.Struct, eq=False, gc=False):
    """The ledger's own record, used by the ledger's modules only.

    The garbage collector does not visit it, because there are hundreds of thousands, one for every stored block. So no
    object that an entry references may reference the entry.

    Attributes:
        offset: of its extent in the region; -1 = it has none.
        shown: lookups find it, from its commit until it is hidden.
        answer: the result of its last lookup, if still valid; see `told`.
        writer: the client that writes it; None once it is committed.
        leaving: the running spill frees its extent at the end.
        used_since: it was used since that spill started.
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

    @property
    def pinned(self) -> bool:
        """Whether its extent must stay as it is."""
        return bool(
            self.leases or self.holders or self.spilling or self.loading or self.hidden or self.writer is not None
        )

    def told(self, base_offset: int) -> Found:
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

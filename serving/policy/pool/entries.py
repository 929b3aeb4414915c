"""One entry of a memory server, from the wish to write it until its last byte is free.

writing ──commit──► in DRAM ◄──load── on SSD
   │                  │  └───spill───►   │          both at once = clean: it may leave DRAM at any moment
   └──abort, expiry───┴───── hidden ─────┘          hidden = no lookup finds it; gone when nobody uses its extent
"""

from dataclasses import dataclass

from serving.ids import BlockHash
from serving.policy.pool.entry import Found, Kind, Space, Tier
from serving.policy.pool.quotas import Account


class Entry:
    """The ledger's own record; only files of the ledger see it.

    Attributes:
        offset: of its extent in the region; -1 = it has none.
        found: what a lookup answers; None while it is written, and from the moment it is hidden.
        writer: the client that writes it; None once it is committed.
        leaving: the spill under way is to free its extent.
        used_since: it was used since that spill began.
        leases: clients that lease it. holders: those who hold it; None = nobody, as nearly always.
    """

    __slots__ = (
        "account",
        "checksum",
        "found",
        "hash",
        "hidden",
        "hits",
        "holders",
        "in_dram",
        "kind",
        "last_use",
        "leases",
        "leaving",
        "loading",
        "nbytes",
        "offset",
        "on_ssd",
        "space",
        "spilling",
        "used_since",
        "version",
        "writer",
    )

    def __init__(self, version: int, space: Space, hash: BlockHash, kind: Kind, nbytes: int, account: Account) -> None:
        self.version = version
        self.space = space
        self.hash = hash
        self.kind = kind
        self.nbytes = nbytes
        self.account = account
        self.checksum = 0
        self.offset = -1
        self.found: Found | None = None
        self.writer: int | None = None
        self.in_dram = False
        self.on_ssd = False
        self.loading = False
        self.spilling = False
        self.leaving = False
        self.used_since = False
        self.hidden = False
        self.leases = 0
        self.holders: set[int] | None = None
        self.last_use = 0.0
        self.hits = 0

    @property
    def pinned(self) -> bool:
        """Whether its extent must stay as it is."""
        return bool(
            self.leases or self.holders or self.spilling or self.loading or self.hidden or self.writer is not None
        )

    def publish(self, base_offset: int) -> None:
        """Make lookups answer what is true now."""
        tier, offset = (Tier.DRAM, base_offset + self.offset) if self.in_dram else (Tier.SSD, -1)
        self.found = Found(self.hash, self.version, tier, offset, self.nbytes, self.checksum)


@dataclass(frozen=True, slots=True)
class EntryView:
    """A committed entry as audits, listings and migrations see it.

    Args:
        offset: in the segment; -1 = not in DRAM.
        leased: somebody leases or holds it.
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
    """What the outside may know of an entry."""
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

"""Entries of a memory server as values: the words that its ledger, its wire and its clients share.

Those that are sent for every block are msgspec structs, because they are encoded and decoded by the hundred.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from serving.ids import BlockHash


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

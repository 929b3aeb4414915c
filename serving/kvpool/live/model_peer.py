"""Fetching a model image from a memory server of another node, chunk by chunk, into memory of this one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from hardware.ub.copy import RunningChecksum
from serving.errors import PoolError
from serving.ids import BlockHash
from serving.kvpool.core.entry import EntryTier, Found, Space
from serving.kvpool.core.messages import Looked, Lookup, Promote, Promoted, ReleaseLeases, Report
from serving.kvpool.live.block_copies import pieces_of
from serving.kvpool.live.server_link import ServerLink

REPLY_S = 2.0
"""Response time of a server that need not wait for its disk."""
CHUNK_S = 5.0
PART_BYTES = 1 << 20
"""Hashed at a time, while it is in the cache."""
DISK_S = 30.0
"""How long an image may take from SSD to memory; a server waits no longer."""
LEASE_S = 5.0


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model image as an entry of the pool. Its layout is its key, so that servers announce the key."""

    space: Space
    hash: BlockHash

    @classmethod
    def of(cls, key: str) -> "ModelEntry":
        """The entry of a key."""
        return cls(Space("", key), BlockHash(blake2b(key.encode(), digest_size=16).digest()))


def soon(seconds: float | None = None) -> float:
    """A deadline. Args: seconds: from now; None = `REPLY_S`."""
    return time.monotonic() + (REPLY_S if seconds is None else seconds)


def look(link: ServerLink, entry: ModelEntry) -> Found | None:
    """Whether a server has the image; then it is leased.

    Raises: PoolError if the server does not answer.
    """
    return link.ask(Looked, _lookup(entry), soon()).found[0]


def look_all(links: Sequence[ServerLink], entry: ModelEntry) -> list[tuple[ServerLink, Found]]:
    """Servers with the image, found and leased in one round: those in memory first.

    Servers that do not respond count as without it.
    """
    deadline = soon()
    asked = [link for link in links if _sent(link, entry, deadline)]
    offers = [(link, found) for link in asked if (found := _received(link, deadline)) is not None]
    return sorted(offers, key=lambda offer: offer[1].tier is not EntryTier.DRAM)


def in_memory(link: ServerLink, found: Found) -> Found | None:
    """The image in its server's memory, brought there from SSD if need be; None if that cannot be now.

    Raises: PoolError if the server does not answer.
    """
    if found.tier is EntryTier.DRAM:
        return found
    return link.ask(Promoted, Promote((found.version,), DISK_S), soon(DISK_S + REPLY_S)).found[0]


def release(link: ServerLink, found: Found) -> None:
    """End a lease, if the server is reachable."""
    try:
        link.post(ReleaseLeases((found.version,)), soon())
    except PoolError:
        return  # the lease ended with the connection


def fetch(link: ServerLink, entry: ModelEntry, offer: Found, target: memoryview) -> int:
    """Read the whole image and verify it. Wrong bytes are reported to their server.

    Args:
        offer: from `look`; leased.
        target: writable, of the image's size.
    Returns: its checksum.
    Raises: PoolError if it was removed, its bytes are wrong, or its server does not respond.
    """
    found = in_memory(link, offer)
    if found is None:
        raise PoolError(f"memory server {link.name} cannot load the image from its disk now")
    leased_at = time.monotonic()
    running = RunningChecksum()
    for piece in pieces_of(found.version, found.nbytes):
        if time.monotonic() - leased_at > LEASE_S / 2:
            leased_at = time.monotonic()
            again = look(link, entry)
            if again is None or again.version != found.version:
                raise PoolError(f"memory server {link.name} dropped the image while it was read")
        _, start, nbytes = piece
        parts = [target[at : min(at + PART_BYTES, start + nbytes)] for at in range(start, start + nbytes, PART_BYTES)]
        pieces = [(found.version, start + PART_BYTES * number, len(part)) for number, part in enumerate(parts)]
        if link.read(pieces, parts, soon(CHUNK_S), partial(_hash, running, parts)) < len(parts):
            raise PoolError(f"memory server {link.name} dropped the image while it was read")
    digest = running.digest
    if digest != found.checksum:
        link.post(Report((found.version,)), soon())
        raise PoolError(f"the image of memory server {link.name} has another checksum than it should have")
    return digest


def _hash(running: RunningChecksum, parts: Sequence[memoryview], at: int) -> None:
    running.add(parts[at])


def _lookup(entry: ModelEntry) -> Lookup:
    return Lookup(entry.space, (entry.hash,), LEASE_S)


def _sent(link: ServerLink, entry: ModelEntry, deadline: float) -> bool:
    try:
        link.send(_lookup(entry), deadline)
    except PoolError:
        return False
    return True


def _received(link: ServerLink, deadline: float) -> Found | None:
    try:
        return link.receive(Looked, deadline).found[0]
    except PoolError:
        return None

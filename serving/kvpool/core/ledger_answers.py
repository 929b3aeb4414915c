"""Answers of a memory server's ledger to the requests of a client's operation, for drivers without a wire.

Virtual time and tests drive `BatchMove`, `PrefixFind` and `BatchWrite` with it. A live server's handlers also lock the
ledger, measure, and wait for the disk.
"""

from serving.errors import LedgerError
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Found, Space
from serving.kvpool.core.memory_manager import MemoryManager


def found_in_dram(manager: MemoryManager, version: int) -> Found | None:
    """The entry if its bytes are in memory now."""
    found = manager.found(version)
    return found if found is not None and found.tier is EntryTier.DRAM else None


def peek(manager: MemoryManager, message: m.Peek) -> m.Peeked:
    """Tiers of entries."""
    known = manager.shelf(Space(message.namespace, message.layout)).entries
    found = [known.get(one) for one in message.hashes]
    return m.Peeked(bytes([0 if one is None or not one.shown else one.in_dram + 2 * one.on_ssd for one in found]))


def ledger_answer(manager: MemoryManager, message: m.Message, client: int, now: float) -> m.Message:
    """Apply a request to a ledger.

    Args:
        client: number under which leases and reservations are booked.
    Returns: the answer. That of `Promote` lists what is in memory now, before the disk has loaded anything.
    Raises: LedgerError for a request that concerns bytes, files or connections.
    """
    if isinstance(message, m.Lookup):
        return m.Looked(manager.lookup(message.space, message.hashes, client, now, message.lease_s))
    if isinstance(message, m.Reserve):
        return m.Reserved(manager.reserve(message.space, message.items, client, now, message.kind))
    if isinstance(message, m.Commit):
        ok = tuple([manager.commit(version, digest, client, now) for version, digest in message.items])
        return m.Committed(ok)
    if isinstance(message, m.Drop):
        return m.Committed(tuple([manager.remove(version, now) for version in message.versions]))
    if isinstance(message, m.Claim):
        return m.Hinted(tuple([manager.claims.claim(message.space, claim, now) for claim in message.claims]))
    if isinstance(message, m.AskClaims):
        return m.ClaimsTold(manager.claims.of(message.versions, now))
    if isinstance(message, m.Hint):
        return m.Hinted(tuple([manager.claims.hint(message.namespace, action, now) for action in message.actions]))
    if isinstance(message, m.ReleaseLeases):
        manager.release(message.versions, client, now)
    elif isinstance(message, m.Promote):
        manager.promote(message.versions, client, now)
        return m.Promoted(tuple([found_in_dram(manager, version) for version in message.versions]))
    elif isinstance(message, m.Abort):
        for version in message.versions:
            manager.abort(version, client, now)
    else:
        raise LedgerError(f"a ledger alone cannot answer {type(message).__name__}")
    return m.Done()

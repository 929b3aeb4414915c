"""Answers of a memory server's ledger to the requests of a client's operation, for drivers without a wire.

Virtual time and tests drive `BatchMove`, `PrefixFind` and `BatchWrite` with it. A live server's handlers also lock the
ledger, measure, and wait for the disk.
"""

from serving.errors import LedgerError
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Found
from serving.kvpool.core.memory_manager import MemoryManager


def found_in_dram(manager: MemoryManager, version: int) -> Found | None:
    """The entry if its bytes are in memory now."""
    found = manager.found(version)
    return found if found is not None and found.tier is EntryTier.DRAM else None


def ledger_answer(manager: MemoryManager, message: m.Message, client: int, now: float) -> m.Message:
    """Apply a request to a ledger.

    Args:
        client: number under which leases and reservations are booked.
    Returns: the answer. That of `Promote` lists what is in memory now, before the disk has loaded anything.
    Raises: LedgerError for a request that concerns bytes, files or connections.
    """
    match message:
        case m.Lookup(space, hashes, lease_s):
            return m.Looked(manager.lookup(space, hashes, client, now, lease_s))
        case m.ReleaseLeases(versions):
            manager.release(versions, client, now)
        case m.Promote(versions):
            manager.promote(versions, client, now)
            return m.Promoted(tuple([found_in_dram(manager, version) for version in versions]))
        case m.Reserve(space, kind, items):
            return m.Reserved(manager.reserve(space, items, client, now, kind))
        case m.Commit(items):
            return m.Committed(tuple([manager.commit(version, digest, client, now) for version, digest in items]))
        case m.Abort(versions):
            for version in versions:
                manager.abort(version, client, now)
        case m.Drop(versions):
            return m.Committed(tuple([manager.remove(version, now) for version in versions]))
        case _:
            raise LedgerError(f"a ledger alone cannot answer {type(message).__name__}")
    return m.Done()

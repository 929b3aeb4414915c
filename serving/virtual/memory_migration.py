"""Moves entries to the server that owns them, in virtual time: after a server joined, and when one leaves.

The same rounds as a live memory server's own migration, with the same limits and pace: those used last go first, a
batch at a time, and a round that left something behind is tried again. Two things differ, because there is no wire: an
entry on SSD goes straight to its owner, without the detour through its server's memory; and there are no idle rounds,
since no client with an old view can have written to the wrong server.
"""

from collections.abc import Callable, Iterator

from serving.ids import BlockHash
from serving.kvpool.core.entries import Entry, EntryView
from serving.kvpool.core.entry import GrantStatus
from serving.kvpool.core.migration_plan import next_round, planned_batches, round_end
from serving.kvpool.core.ring import HashRing
from serving.virtual.memory_server import VirtualServer

_MIGRATOR = -1
"""Under which number its writes are booked."""

Find = Callable[[BlockHash], VirtualServer | None]
"""The server that a block belongs to now; None = there is none, or it does not answer."""


class Migration:
    """One server's migration. It says when its next step is due and is called then.

    Attributes:
        due: when `step` should be called; None = everything is where it should be.
        left: entries that should be elsewhere, as counted at the start of the round and kept since.
        moved, moved_bytes: so far.
    """

    def __init__(self, server: VirtualServer, find: Find, bytes_per_s: float) -> None:
        self.server = server
        self.due: float | None = None
        self.left = 0
        self.moved = 0
        self.moved_bytes = 0
        self._find = find
        self._bytes_per_s = bytes_per_s
        self._batches: Iterator[list[EntryView]] | None = None
        self._round_ends = 0.0
        self._ring: HashRing | None = None

    def settle(self, ring: HashRing, now: float) -> None:
        """Adopt another ring: count what should be elsewhere, and go on with that.

        Effects: a round begins, in place of the one under way; `due` unless there is nothing to move.
        """
        self._ring = ring
        strays = [
            one for one in self.server.manager.entries() if ring.primary(one.hash) not in (self.server.name, None)
        ]
        self.left = len(strays)
        self._round_ends = round_end(now, self.server.leave_by)
        capacity_bytes = self.server.manager.settings.capacity_bytes
        self._batches = planned_batches(strays, lambda one: -one.last_use, capacity_bytes)
        self.due = now if strays else None

    def step(self, now: float) -> None:
        """Move one batch; when the round is over, decide when the next one begins.

        Effects: entries move to their owners.
        """
        assert self._ring is not None, "a step without a round"
        if self._batches is None:
            self.settle(self._ring, now)
            if self.due is None:
                return
        batch = next(self._batches, None) if self._batches is not None and now < self._round_ends else None
        if batch is None:
            self._batches = None
            self.due = next_round(self.left, now, self.server.leave_by)
            return
        nbytes = sum(self._move(view, now) for view in batch)
        self.due = now + nbytes / self._bytes_per_s

    def _move(self, view: EntryView, now: float) -> int:
        """Returns the bytes copied."""
        shelf = self.server.shelf(view.space.namespace)
        entry = shelf.entries.get(view.hash)
        if entry is None or not entry.shown:
            self.left -= 1  # evicted meanwhile
            return 0
        shelf.use(entry, now)
        owner = self._find(view.hash)
        if owner is None or owner is self.server:
            return 0
        other = owner.shelf(view.space.namespace)
        written = other.admit(view.hash, view.nbytes, _MIGRATOR, now)
        copied = 0
        if isinstance(written, Entry):
            other.finish(written, now)
            copied = view.nbytes
        elif written is not GrantStatus.PRESENT:
            return 0
        if self.server.manager.remove(entry.version, now):
            self.left -= 1
            self.moved += 1
        self.moved_bytes += copied
        return copied

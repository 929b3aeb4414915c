"""Leases of readers: they end by release, when their client disconnects, or by expiry.

A client has at most one lease of an entry; another lookup extends it. All leases of one lookup share one item in the
queue of expiries.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from serving.kvpool.core.entry import Entry


class LeaseBook:
    """Leases by client. Keeps `Entry.leases`, the number of clients, true."""

    __slots__ = ("_batches", "_due", "_of", "expired", "leased", "lent")

    def __init__(self) -> None:
        self.expired = 0
        self.leased = 0  # entries with at least one lease
        self.lent = 0  # leases that are nobody's, see `lend`
        self._of: dict[int, dict[int, float]] = {}  # client -> version -> until
        self._due: list[tuple[float, int, int, Sequence[Entry]]] = []
        self._batches = 0

    @property
    def next_due(self) -> float | None:
        """No lease ends by itself before this."""
        return self._due[0][0] if self._due else None

    def grant(self, entries: Sequence[Entry], client: int, until: float) -> None:
        """Lease these to a client; a lease that it has becomes longer, never shorter."""
        if not entries:
            return
        mine = self._of.get(client)
        if mine is None:
            mine = self._of[client] = {}
        for entry in entries:
            before = mine.get(entry.version)
            if before is None:
                if not entry.leases:
                    self.leased += 1
                entry.leases += 1
                mine[entry.version] = until
            elif before < until:
                mine[entry.version] = until
        self._batches += 1
        heappush(self._due, (until, self._batches, client, entries))

    def release(self, entry: Entry, client: int) -> bool:
        """End one lease.

        Returns: whether there was one.
        """
        mine = self._of.get(client)
        if mine is None or mine.pop(entry.version, None) is None:
            return False
        if not mine:
            del self._of[client]
        self._end(entry)
        return True

    def lend(self, entry: Entry) -> None:
        """One more lease, of a driver in the same process that keeps its own books and ends it with `give_back`."""
        if not entry.leases:
            self.leased += 1
        entry.leases += 1
        self.lent += 1

    def give_back(self, entry: Entry) -> None:
        """End of `lend`."""
        self.lent -= 1
        entry.leases -= 1
        if not entry.leases:
            self.leased -= 1

    def versions_of(self, client: int) -> list[int]:
        """Versions that a client leases."""
        return list(self._of.get(client, ()))

    def expire(self, now: float) -> list[Entry]:
        """End every expired lease.

        Returns: entries without any lease as a result.
        """
        free: list[Entry] = []
        while self._due and self._due[0][0] <= now:
            _until, _batch, client, entries = heappop(self._due)
            mine = self._of.get(client)
            if mine is None:
                continue
            for entry in entries:
                until = mine.get(entry.version)
                if until is not None and until <= now:
                    del mine[entry.version]
                    self.expired += 1
                    self._end(entry)
                    if not entry.leases:
                        free.append(entry)
            if not mine:
                del self._of[client]
        return free

    def counts(self) -> dict[int, int]:
        """Version -> clients that lease it, counted from scratch, for `check`."""
        counts: dict[int, int] = {}
        for mine in self._of.values():
            for version in mine:
                counts[version] = counts.get(version, 0) + 1
        return counts

    def _end(self, entry: Entry) -> None:
        entry.leases -= 1
        if not entry.leases:
            self.leased -= 1


class ReservationBook:
    """Reservations of writers. `Entry.writer` names the writer; an entry without one is no reservation any more."""

    __slots__ = ("_due", "_of")

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Entry]] = {}  # client -> version -> entry
        self._due: list[tuple[float, int, Entry]] = []

    @property
    def next_due(self) -> float | None:
        """No reservation ends by itself before this."""
        while self._due and self._due[0][2].writer is None:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def add(self, entry: Entry, client: int, until: float) -> None:
        """Add a client's reservation of an entry."""
        entry.writer = client
        self._of.setdefault(client, {})[entry.version] = entry
        heappush(self._due, (until, entry.version, entry))

    def end(self, entry: Entry) -> None:
        """End a reservation: the entry is written, or will not be."""
        assert entry.writer is not None, "an entry that is reserved has a writer"
        mine = self._of[entry.writer]
        del mine[entry.version]
        if not mine:
            del self._of[entry.writer]
        entry.writer = None

    def of(self, client: int) -> Iterable[Entry]:
        """Entries that a client writes."""
        return list(self._of.get(client, {}).values())

    def take_due(self, now: float) -> list[Entry]:
        """Entries whose writers took too long; their caller ends them."""
        late: list[Entry] = []
        while self._due and self._due[0][0] <= now:
            _until, _version, entry = heappop(self._due)
            if entry.writer is not None:
                late.append(entry)
        return late

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._of.values())

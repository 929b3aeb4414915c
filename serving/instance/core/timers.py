"""Points in time at which the engine must act without an event: deadlines and leases.

A heap with lazy deletion: most sequences end long before their deadline, and removing from a heap is slower than
recognising a stale entry later. When stale entries dominate, the heap is rebuilt.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from serving.ids import SequenceId

_REBUILD_MARGIN = 1024
"""Stale entries tolerated beyond the live ones; some tens of kilobytes."""


class Timers:
    """Times per sequence; `is_live` reports whether an entry is still valid."""

    __slots__ = ("_heap", "_is_live")

    def __init__(self, is_live: Callable[[SequenceId, float], bool]) -> None:
        """
        Args:
            is_live: whether a time that was set for a sequence still matters.
        """
        self._heap: list[tuple[float, SequenceId]] = []
        self._is_live = is_live

    def set(self, at: float, sequence_id: SequenceId, live_count: int) -> None:
        """Add a time.

        Args:
            live_count: approximate number of live entries, to detect when most are stale.
        Effects: may rebuild the heap.
        """
        heappush(self._heap, (at, sequence_id))
        if len(self._heap) > 2 * live_count + _REBUILD_MARGIN:
            self._heap = [entry for entry in self._heap if self._is_live(entry[1], entry[0])]
            heapify(self._heap)

    def due(self, now: float) -> list[SequenceId]:
        """Remove all due entries, and return those that are not stale.

        Returns: each sequence once, although a deadline and a lease may be due together.
        Effects: removes the entries.
        """
        taken: dict[SequenceId, None] = {}
        while self._heap and self._heap[0][0] <= now:
            at, sequence_id = heappop(self._heap)
            if self._is_live(sequence_id, at):
                taken[sequence_id] = None
        return list(taken)

    def next_at(self) -> float | None:
        """The next valid time; None if there is none.

        Effects: drops stale entries from the top.
        """
        while self._heap and not self._is_live(self._heap[0][1], self._heap[0][0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)

"""Future actions inside the pool, in total order: by time, then by when they were decided."""

from collections.abc import Callable
from heapq import heappop, heappush

NEVER = float("inf")


class ActionTimers:
    """Actions with their times. Each is called with the time for which it was scheduled."""

    __slots__ = ("_heap", "_number", "due")

    def __init__(self) -> None:
        self.due = NEVER
        """When the first action is to be done."""
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    def at(self, time: float, action: Callable[[float], None]) -> None:
        """Schedule an action. It cannot be cancelled: the action itself checks whether it still applies."""
        self._number += 1
        heappush(self._heap, (time, self._number, action))
        self.due = self._heap[0][0]

    def pop(self) -> tuple[float, Callable[[float], None]]:
        """Remove and return the first action with its time. There must be one."""
        time, _number, action = heappop(self._heap)
        self.due = self._heap[0][0] if self._heap else NEVER
        return time, action

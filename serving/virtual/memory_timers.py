"""Future actions inside the pool, in total order: by time, then by when they were decided."""

from collections.abc import Callable
from heapq import heappop, heappush

NEVER = float("inf")


class ActionTimers:
    """Actions with their times. An action is told the time for which it was set."""

    __slots__ = ("_heap", "_number", "due")

    def __init__(self) -> None:
        self.due = NEVER
        """When the first action is to be done."""
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    def at(self, time: float, action: Callable[[float], None]) -> None:
        """Have something done later. It cannot be called off: the action looks itself whether it is still wanted.

        Effects: `due`.
        """
        self._number += 1
        heappush(self._heap, (time, self._number, action))
        self.due = self._heap[0][0]

    def pop(self) -> tuple[float, Callable[[float], None]]:
        """The first action, with its time; it is the caller's now. There must be one.

        Effects: `due`.
        """
        time, _number, action = heappop(self._heap)
        self.due = self._heap[0][0] if self._heap else NEVER
        return time, action

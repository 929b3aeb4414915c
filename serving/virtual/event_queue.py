"""Virtual time: an event queue with a total order.

Events due at the same moment are handled in the order in which they were scheduled, so that a seed determines the whole
run. Events are never removed from the heap: to cancel one, its action compares a version or a time when it is called.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from serving.errors import LedgerError

Action = Callable[[Any], None]


class EventQueue:
    """Virtual clock and the heap of scheduled events."""

    __slots__ = ("_halted", "_heap", "_serial", "handled", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual time [s]."""
        self.handled = 0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._serial = 0
        self._halted = False

    def at(self, when: float, action: Action, argument: Any = None) -> None:  # noqa: ANN401 - handed to the action
        """Schedule `action(argument)` at `when` [s]; a time in the past means now."""
        self._serial += 1
        heappush(self._heap, (when if when > self.now else self.now, self._serial, action, argument))

    @property
    def next_at(self) -> float:
        """Time of the next event [s]; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def run(self, until: float = math.inf, at_most: int = 1 << 62) -> None:
        """Handle the events up to a time [s] in order, at most `at_most` of them, and move `now` to the last one.

        Raises: LedgerError if time would go backwards, which is a bug.
        """
        heap = self._heap
        self._halted = False
        for _ in range(at_most):
            if not heap or heap[0][0] > until or self._halted:
                break
            when, _, action, argument = heappop(heap)
            if when < self.now:
                raise LedgerError(f"an event of {when} s came at {self.now} s")
            self.now = when
            self.handled += 1
            action(argument)

    def halt(self) -> None:
        """Make `run` return after the current event; the remaining events cannot change the result."""
        self._halted = True

    def __len__(self) -> int:
        return len(self._heap)

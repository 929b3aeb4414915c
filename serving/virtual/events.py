"""Virtual time: a heap of things to do, in a total order.

Things due at the same moment happen in the order in which they were asked for, so that one seed gives one history.
Nothing is ever taken out of the heap: who changes its mind compares a number when it is called.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from serving.errors import LedgerError

Action = Callable[[Any], None]


class EventQueue:
    """The clock and the future."""

    __slots__ = ("_halted", "_heap", "_serial", "handled", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual time [s]."""
        self.handled = 0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._serial = 0
        self._halted = False

    def at(self, when: float, action: Action, argument: Any = None) -> None:  # noqa: ANN401 - handed to the action
        """Call `action(argument)` at a moment; a moment that has passed means now.

        Effects: grows the heap.
        """
        self._serial += 1
        heappush(self._heap, (when if when > self.now else self.now, self._serial, action, argument))

    @property
    def next_at(self) -> float:
        """When the next thing is due; infinite if nothing is."""
        return self._heap[0][0] if self._heap else math.inf

    def run(self, until: float = math.inf, at_most: int = 1 << 62) -> None:
        """Handle everything up to a moment, in order, but no more than so many things.

        Raises: LedgerError if time would go backwards: our bug.
        Effects: moves `now` to the last thing handled.
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
        """Let `run` return after the present thing: what is still to come matters to nobody."""
        self._halted = True

    def __len__(self) -> int:
        return len(self._heap)

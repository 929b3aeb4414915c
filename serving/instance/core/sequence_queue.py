"""Sequences in service order: priority first, then turn.

With several API keys, priority never moves a sequence ahead of another key's: each key keeps the turns with which its
sequences arrived, and its concurrent sequences use these turns in order of their priorities.

A plain sorted list: queues have at most some hundreds of entries, insertion is mostly near the end, and cancelling from
the middle must be possible.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf

from serving.errors import LedgerError
from serving.instance.core.sequence import LiveSequence, Order


def _order(sequence: LiveSequence) -> Order:
    return sequence.order


class SequenceQueue:
    """A list of sequences kept in service order."""

    __slots__ = ("_ranked", "items")

    def __init__(self) -> None:
        self.items: list[LiveSequence] = []
        """Read-only; change it only through the methods."""
        self._ranked = 0
        """Number of sequences that have a line and a priority in it."""

    def add(self, sequence: LiveSequence) -> None:
        """Insert by order, or by priority within its line. Effects: may change orders."""
        if sequence.spec.line:
            self._ranked += sequence.spec.priority != 0
            if self._ranked:
                self._take_turn(sequence)
        if not self.items or self.items[-1].order < sequence.order:
            self.items.append(sequence)
        else:
            insort(self.items, sequence, key=_order)

    def remove(self, sequence: LiveSequence) -> None:
        """Remove a sequence.

        Raises: LedgerError if it is not in the queue.
        """
        index = 0
        if not self.items or self.items[0] is not sequence:  # usually it is the head
            index = bisect_left(self.items, sequence.order, key=_order)
            if index == len(self.items) or self.items[index] is not sequence:
                raise LedgerError(f"sequence {sequence.sequence_id} is not in this queue")
        del self.items[index]
        if sequence.spec.line:
            self._ranked -= sequence.spec.priority != 0

    def _take_turn(self, sequence: LiveSequence) -> None:
        """Redistribute a line's turns, including the new one, among its sequences. Sequences whose blocks are held here
        keep the first turns.
        """
        own = [one for one in self.items if one.spec.line == sequence.spec.line and one.order[0] > -inf]
        if not own or sequence.order[0] == -inf:
            return
        own.append(sequence)
        orders = sorted(map(_order, own))
        own.sort(key=lambda one: (one.spec.priority, one.order))
        if all(one.order == order for one, order in zip(own, orders, strict=True)):
            return
        for one, order in zip(own, orders, strict=True):
            one.order = order
        self.items.sort(key=_order)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self.items)

"""Sequences in service order: priority first, then turn.

A plain sorted list: queues are bounded to some hundreds, insertion is mostly near the end, and cancelling from the
middle must be possible.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from serving.errors import LedgerError
from serving.instance.core.sequence import LiveSequence, Order


def _order(sequence: LiveSequence) -> Order:
    return sequence.order


class SequenceQueue:
    """A list of sequences kept in service order."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[LiveSequence] = []
        """Read freely; change only through the methods."""

    def add(self, sequence: LiveSequence) -> None:
        """Insert at the place of its order."""
        if not self.items or self.items[-1].order < sequence.order:
            self.items.append(sequence)
        else:
            insort(self.items, sequence, key=_order)

    def remove(self, sequence: LiveSequence) -> None:
        """Take one sequence out.

        Raises: LedgerError if it is not here.
        """
        if self.items and self.items[0] is sequence:  # mostly: it is the head's turn
            del self.items[0]
            return
        index = bisect_left(self.items, sequence.order, key=_order)
        if index == len(self.items) or self.items[index] is not sequence:
            raise LedgerError(f"sequence {sequence.sequence_id} is not in this queue")
        del self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self.items)

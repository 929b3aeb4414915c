"""Waiting queue of an instance, which is fair in tokens between API keys.

Start-time fair queueing: a new sequence's start tag is the end of its key's line or the instance's virtual time,
whichever is later, and its tokens extend the line. The smallest tag is next. So a key with a hundred waiting prompts
gets one, not all of them, ahead of another key's next. Within a line, priority decides, then turn. Preempted and
resumed sequences, and those whose blocks are held here, precede all new ones.

Source: Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from serving.errors import LedgerError
from serving.instance.core.sequence import LiveSequence, Order, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks

# Sequences in service order: priority first, then turn.
#
# With several API keys, priority never moves a sequence ahead of another key's: each key keeps the turns with which its
# sequences arrived, and its concurrent sequences use these turns in order of their priorities.
#
# A plain sorted list: queues have at most some hundreds of entries, insertion is mostly near the end, and cancelling
# from the middle must be possible.


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
        """Redistribute a line's turns among its sequences; those with blocks here keep the first ones."""
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


# Waiting queue of an instance, which is fair in tokens between API keys.


class WaitingQueue(SequenceQueue):
    """Sequences in the order of their start. With a single key, the order of `SequenceQueue`."""

    __slots__ = ("_ends", "_served")

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[int, float] = {}
        """End of each line [tokens]; only lines used since the queue was last empty."""
        self._served = 0.0
        """Tag of the last started sequence [tokens]."""

    def enter(self, sequence: LiveSequence) -> None:
        """Append a new sequence to its key's line. Effects: may change orders within the line."""
        line, (rank, turn) = sequence.spec.line, sequence.order
        if line and rank > -inf:
            tag = max(self._served, self._ends.get(line, 0.0))
            self._ends[line] = tag + max(1, sequence.num_missing)
            sequence.order = (tag, turn)
            self._take_turn(sequence)
        self.add(sequence)

    def start(self, sequence: LiveSequence) -> None:
        """Remove a sequence that starts now; in the batch its turn counts.

        Raises: LedgerError if it is not in the queue.
        """
        tag, turn = sequence.order
        self.remove(sequence)
        if sequence.spec.line and tag > -inf:
            self._served = max(self._served, tag)
            sequence.order = (0, turn)
        if not self.items:
            self._served = max(self._served, *self._ends.values()) if self._ends else self._served
            self._ends.clear()

    def _take_turn(self, sequence: LiveSequence) -> None:
        """Redistribute a line's tags, including the new one, by priority, then turn."""
        own = [one for one in self.items if one.spec.line == sequence.spec.line and one.order[0] > -inf]
        if not own or sequence.order[0] == -inf:
            return
        own.append(sequence)
        tags = sorted([one.order[0] for one in own])
        own.sort(key=lambda one: (one.spec.priority, one.order[1]))
        for one, tag in zip(own, tags, strict=True):
            one.order = (tag, one.order[1])
        self.items.sort(key=lambda one: one.order)


# Admission from the waiting queue: strictly in service order, while slots and blocks are available.
#
# The head of the queue is never overtaken. Otherwise a stream of short prompts could starve a long one, and handoffs
# could starve a preempted sequence. A watermark of free blocks is kept for the running batch to grow into; without a
# batch there is none, so a lone sequence that fits the pool is always admitted.


class AdmissionRoom(NamedTuple):
    """Slots, blocks and tokens that an admission round may use.

    Args:
        slots: number of sequences that may still join the batch.
        keep_free: blocks to leave free, the watermark; 0 for an empty batch.
    """

    slots: int
    keep_free: int


def admit_head(
    waiting: WaitingQueue, blocks: SequenceBlocks, room: AdmissionRoom, phase: SequencePhase | None = None
) -> LiveSequence | None:
    """Take the head of the queue if it fits.

    Args:
        phase: admit only a head in this phase; None for any.
    Returns: the sequence, with blocks reserved or taken over from its holder, or None.
    Effects: removes it from the queue.
    """
    if room.slots <= 0 or not waiting.items:
        return None
    head = waiting.items[0]
    if phase is not None and head.phase is not phase:
        return None
    holder = head.holder
    if holder is not None and holder.phase is SequencePhase.HELD:
        if not blocks.take_over(head, holder):
            return None
    elif not blocks.reserve(head, room.keep_free):
        return None
    waiting.start(head)
    return head

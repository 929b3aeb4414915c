"""Waiting queue of an instance, which is fair in tokens between API keys.

Start-time fair queueing: a new sequence's start tag is the end of its key's line or the instance's virtual time,
whichever is later, and its tokens extend the line. The smallest tag is next. So a key with a hundred waiting prompts
gets one, not all of them, ahead of another key's next. Within a line, priority decides, then turn. Preempted and
resumed sequences, and those whose blocks are held here, precede all new ones.

Source: Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996.
"""

from math import inf

from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_queue import SequenceQueue


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

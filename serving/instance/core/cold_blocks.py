"""Free KV blocks whose content is still known, in the order in which they were released.

A list is read from its front and grows at its end. A block taken out of the middle, because a prefix matched it, leaves
a mark in the list that is skipped at the front:

    [ taken | taken | 7 | 3 | (5) | 9 | 5 ]        5 was taken back by a match and released again: its first place is
                      ▲ front                      void, its last one counts
"""

from collections.abc import Iterator, Sequence

from serving.ids import BlockId

_SWEEP_AT = 1024
"""Minimum number of taken or void places before they are swept."""


class ColdBlocks:
    """A queue of blocks with cheap removal from its middle. A block is in it at most once."""

    __slots__ = ("_front", "_places", "_size", "_void")

    def __init__(self) -> None:
        self._places: list[BlockId] = []
        self._front = 0
        self._size = 0
        self._void: dict[BlockId, int] = {}
        """Number of a block's void places; they precede the valid one."""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[BlockId]:
        """Oldest first."""
        void = dict(self._void)
        for block in self._places[self._front :]:
            if void.get(block):
                void[block] -= 1
            else:
                yield block

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Append released blocks in this order; none of them may be in the queue.

        Effects: they become the youngest.
        """
        self._places += blocks
        self._size += len(blocks)

    def remove(self, block: BlockId) -> None:
        """Remove a block from anywhere in the queue."""
        self._void[block] = self._void.get(block, 0) + 1
        self._size -= 1
        if len(self._places) - self._front > 2 * self._size + _SWEEP_AT:  # matched again and again, but never evicted
            self._places, self._front = list(self), 0
            self._void.clear()

    def take(self, count: int) -> list[BlockId]:
        """Take out the oldest blocks; there must be at least `count`."""
        assert count <= self._size, "more blocks are taken than are cold"
        front = self._front
        taken = self._places[front : front + count]
        front += count
        if self._void and not self._void.keys().isdisjoint(taken):
            taken, front = self._valid(count)
        self._front = front
        self._size -= count
        if front > _SWEEP_AT and 2 * front > len(self._places):
            del self._places[:front]
            self._front = 0
        return taken

    def _valid(self, count: int) -> tuple[list[BlockId], int]:
        """The oldest blocks, skipping void places. Returns: the blocks, and the new front."""
        places, void, front = self._places, self._void, self._front
        taken: list[BlockId] = []
        while lacking := count - len(taken):
            part = places[front : front + lacking]
            front += lacking
            for block in part:
                if block not in void:
                    taken.append(block)
                elif void[block] == 1:
                    del void[block]
                else:
                    void[block] -= 1
        return taken, front

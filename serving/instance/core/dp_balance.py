"""Choice of the DP group of a decode instance for a new sequence.

All groups run their steps together, so the slowest attention determines the step time: among groups that are not full,
the one with the least KV takes the sequence, including KV reserved for sequences that are still arriving. Source:
xDeepServe (arXiv 2508.02520) section 4.3.

    eligible = groups below their limit of sequences        none -> the group with the fewest sequences, where it waits
    choice   = least KV blocks, in use and reserved; then the fewest sequences; then the lowest number
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from serving.errors import LedgerError


class GroupChoice(NamedTuple):
    """The group, and the reason for the choice."""

    group: int
    reason: str


class DpBalance:
    """Load of the DP groups of one instance, with quick access to the least loaded one."""

    def __init__(self, groups: int, max_sequences: int) -> None:
        """
        Args:
            groups: at least one.
            max_sequences: of one group, running and arriving.
        Raises: LedgerError if either is not positive.
        """
        if groups < 1 or max_sequences < 1:
            raise LedgerError(f"{groups} groups of {max_sequences} sequences cannot decode anything")
        self.max_sequences = max_sequences
        self.open = groups
        """Number of groups, from the first on, that accept sequences."""
        self.blocks = [0] * groups
        """KV blocks in use and reserved, by group."""
        self.sequences = [0] * groups
        # Stale entries are removed lazily: an entry counts only if it matches the present load.
        self._heap = [(0, 0, group) for group in range(groups)]

    def choose(self) -> GroupChoice:
        """The group for the next sequence; call `add` to book it."""
        aside: list[tuple[int, int, int]] = []
        found = None
        while self._heap and found is None:
            blocks, sequences, group = entry = self._heap[0]
            if group >= self.open or blocks != self.blocks[group] or sequences != self.sequences[group]:
                heappop(self._heap)
            elif sequences >= self.max_sequences:
                aside.append(heappop(self._heap))
            else:
                found = entry
        for entry in aside:
            heappush(self._heap, entry)
        if found is not None:
            return GroupChoice(found[2], f"{found[0]} KV blocks, the least of the groups with a free slot")
        *_, group = min(zip(self.sequences, self.blocks, range(self.open), strict=False))
        return GroupChoice(group, f"no group has a free slot; {self.sequences[group]} sequences are the fewest")

    @property
    def open_blocks(self) -> int:
        """KV blocks in use and reserved in groups that accept sequences."""
        return sum(self.blocks[: self.open])

    def close(self, groups: int) -> None:
        """Let only the first groups accept sequences from now on. Raises: LedgerError if that leaves none."""
        if not 1 <= groups <= self.open:
            raise LedgerError(f"{groups} of {self.open} groups cannot stay open")
        self.open = groups

    def resize(self, groups: int) -> None:
        """Change the number of groups; all of them are open.

        Raises: LedgerError if a removed group has sequences.
        """
        if groups < 1 or any(self.sequences[groups:]):
            raise LedgerError(f"groups beyond {groups} still have sequences, or none would be left")
        missing = max(0, groups - len(self.blocks))
        self.blocks = self.blocks[:groups] + [0] * missing
        self.sequences = self.sequences[:groups] + [0] * missing
        self.open = groups
        self._rebuild()

    def add(self, group: int, blocks: int) -> None:
        """Book a sequence with the blocks that it will use."""
        self._change(group, blocks, 1)

    def remove(self, group: int, blocks: int) -> None:
        """Remove a sequence with its booked blocks.

        Raises: LedgerError if the group does not have that many.
        """
        self._change(group, -blocks, -1)

    def _change(self, group: int, blocks: int, sequences: int) -> None:
        self.blocks[group] += blocks
        self.sequences[group] += sequences
        if self.blocks[group] < 0 or self.sequences[group] < 0:
            raise LedgerError(f"group {group} returned more than it had")
        heappush(self._heap, (self.blocks[group], self.sequences[group], group))
        if len(self._heap) > 8 * len(self.blocks) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = list(zip(self.blocks, self.sequences, range(len(self.blocks)), strict=True))
        heapify(self._heap)

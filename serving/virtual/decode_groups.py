"""The DP groups of a decode instance in virtual time: which take sequences, what they decode, how full they are."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from serving.instance.core.dp_balance import DpBalance
from serving.virtual.decode_group import DecodeGroup


class DecodeGroups:
    """The groups of one instance; they grow and shrink in number while it serves.

    Args:
        make: makes the group with a number.
        max_sequences: of one group. die_blocks: KV blocks of one group.
    Attributes:
        items: the groups in order; always the same list.
        balance: chooses the group of a new sequence.
        batch: sequences that all groups decode. largest: those of the fullest one.
    """

    def __init__(self, make: Callable[[int], DecodeGroup], groups: int, max_sequences: int, die_blocks: int) -> None:
        self.balance = DpBalance(groups, max_sequences)
        self.items = [make(die) for die in range(groups)]
        self.batch = 0
        self.largest = 0
        self._make = make
        self._die_blocks = die_blocks
        self._preempted = 0
        """Preemptions in groups that are gone."""
        self._requests = [0] * groups
        self._sizes = Counter({0: groups})
        """How many groups decode so many sequences."""
        self._base = np.zeros(groups)
        self._growth = np.zeros(groups)
        self._link()

    def _link(self) -> None:
        schedulers = [group.seat.engine.scheduler for group in self.items]
        self._block_pools = [scheduler.blocks.pool for scheduler in schedulers]
        self._queues = [scheduler.waiting.items for scheduler in schedulers]

    # ---- what they decode ------------------------------------------------------------------------------------------

    def set_load(self, die: int, iteration: int) -> None:
        """A group has begun its next plan, or has none."""
        group = self.items[die]
        self._growth[die] = group.growth
        self._base[die] = group.context - group.growth * iteration
        before, requests, sizes = self._requests[die], group.requests, self._sizes
        if requests == before:
            return
        self.batch += requests - before
        self._requests[die] = requests
        sizes[before] -= 1
        sizes[requests] += 1
        if requests > self.largest:
            self.largest = requests
        while not sizes[self.largest]:
            self.largest -= 1

    def longest_context(self, iteration: float) -> float:
        """Tokens in the context of the group that has most of them at an iteration, or between two."""
        contexts = self._growth * iteration
        contexts += self._base
        return float(np.maximum.reduce(contexts))

    # ---- how full they are -----------------------------------------------------------------------------------------

    def free_blocks(self) -> int:
        """KV blocks that are neither in use nor promised, of groups that take sequences."""
        return max(0, self.balance.open * self._die_blocks - self.balance.open_blocks)

    def waiting(self) -> int:
        """Sequences without blocks."""
        inside = self.balance.sequences
        return sum([len(queue) for queue, sequences in zip(self._queues, inside, strict=True) if sequences])

    def kv_used(self) -> int:
        """Blocks in use."""
        inside = self.balance.sequences
        return sum([pool.num_used for pool, sequences in zip(self._block_pools, inside, strict=True) if sequences])

    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._preempted + sum([group.seat.engine.scheduler.preemptions for group in self.items])

    # ---- more and fewer --------------------------------------------------------------------------------------------

    def move_out(self, first: int = 0) -> None:
        """Hold what is inside at the next boundary, from a group on, for whatever group or instance pulls it."""
        for group, sequences in zip(self.items[first:], self.balance.sequences[first:], strict=True):
            if sequences:
                group.seat.move_out()

    def close(self, groups: int) -> None:
        """Take sequences only in the first groups from now on; what is in the others goes on in those that stay."""
        self.balance.close(groups)
        self.move_out(groups)

    @property
    def closing(self) -> bool:
        """Whether something is still in groups that take nothing new."""
        stay = self.balance.open
        return any(self.balance.sequences[stay:]) or any([group.running for group in self.items[stay:]])

    def resize(self, groups: int) -> None:
        """Have so many groups from now on, all open.

        Raises: LedgerError if a group that goes has sequences.
        """
        before = len(self.items)
        more = max(0, groups - before)
        self.balance.resize(groups)
        for group in self.items[groups:]:
            group.seat.dead = True
            self._preempted += group.seat.engine.scheduler.preemptions
        del self.items[groups:]
        self.items += [self._make(die) for die in range(before, groups)]
        self._sizes[0] += groups - before
        self._requests = self._requests[:groups] + [0] * more
        self._base = np.append(self._base[:groups], np.zeros(more))
        self._growth = np.append(self._growth[:groups], np.zeros(more))
        self._link()

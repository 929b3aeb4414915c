"""A decode instance that grows and shrinks while it serves: what it has runs on, but for the pause."""

from heapq import heapify

import numpy as np

from serving.virtual.decode import DecodeInstance


class ElasticDecode(DecodeInstance):
    """Adopts handoffs and generates, on more dies or fewer than at its start."""

    _preempted = 0
    """Preemptions in groups that are gone."""

    def close(self, groups: int) -> None:
        """Take sequences only in the first groups from now on; what is in the others goes on in those that stay."""
        self._balance.close(groups)
        for group, sequences in zip(self._groups[groups:], self._balance.sequences[groups:], strict=True):
            if sequences:
                group.seat.move_out()

    @property
    def closing(self) -> bool:
        """Whether something is still in groups that take nothing new."""
        stay = self._balance.open
        return any(self._balance.sequences[stay:]) or any([group.running for group in self._groups[stay:]])

    def resize(self, groups: int, npus: int, pause_s: float) -> None:
        """Have so many groups from now on, all open. Groups that go are empty.

        Args:
            npus: that the groups are on.
            pause_s: it stands still for so long.
        """
        before = len(self._groups)
        more = max(0, groups - before)
        self._balance.resize(groups)
        for group in self._groups[groups:]:
            group.seat.dead = True
            self._preempted += group.seat.engine.scheduler.preemptions
        self._groups = self._groups[:groups] + [self._group(die) for die in range(before, groups)]
        self._block_pools = [group.seat.engine.scheduler.blocks.pool for group in self._groups]
        self._queues = [group.seat.engine.scheduler.waiting.items for group in self._groups]
        self._timers = {die: timer for die, timer in self._timers.items() if die < groups}
        self._due = [(at, die) for at, die in self._due if die < groups]
        heapify(self._due)
        self._sizes[0] += groups - before
        self._requests = self._requests[:groups] + [0] * more
        self._base = np.append(self._base[:groups], np.zeros(more))
        self._growth = np.append(self._growth[:groups], np.zeros(more))
        self._step_groups = groups
        self.npus, self.kv_blocks = npus, groups * self._die_blocks
        self.stall(pause_s)

    def status(self) -> tuple[int, int, int]:
        """See `Instance`. Only open groups have room."""
        return 0, len(self._booked), max(0, self._balance.open * self._die_blocks - self._balance.open_blocks)

    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._preempted + super().preemptions()

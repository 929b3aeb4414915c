"""Dies of an expert-parallel group in virtual time: step time of each, and the resulting waits."""

from collections.abc import Callable, Collection

from hardware.variation import PRODUCTION_MOE_SHARE
from serving.values.expert_facts import ExchangeFacts, ExpertWork

SequenceShare = Callable[[int], float]
"""Share of its normal number of sequences that a die has, 0..1."""


class GroupDies:
    """Dies of one group, by index in the instance.

    Attributes:
        slow: slowdown factors of slow dies.
        shares: rows of each die over those of the busiest one, mean over layers.
    """

    def __init__(self) -> None:
        self.slow: dict[int, float] = {}
        self.shares: list[float] = []
        self._facts: dict[int, ExchangeFacts] = {}

    def keep(self, dies: Collection[int]) -> None:
        """Forget the counts of all dies but these."""
        self._facts = {die: facts for die, facts in self._facts.items() if die in dies}

    def slowest(self, sequences: SequenceShare) -> float:
        """Step time relative to a group without slow dies."""
        return max([1.0, *(self._need(die, sequences) for die in self.slow)])

    def exchange(
        self, dies: Collection[int], ranks: int, busy_s: float, sequences: SequenceShare
    ) -> dict[int, ExchangeFacts]:
        """Work and waits of each die since it joined; all dies wait for the slowest one.

        Args:
            dies: dies that compute. ranks: number of ranks of the group.
            busy_s: duration of the steps since the last call [s].
        """
        needs = {die: self._need(die, sequences) for die in dies}
        last = max(needs, key=needs.__getitem__)
        for die, need in needs.items():
            before = self._facts.get(die, ExchangeFacts((), (), (0.0,) * ranks, 0.0))
            waited = [*before.waited_s[:ranks], *[0.0] * (ranks - len(before.waited_s))]
            waited[last] += busy_s * (1 - need / needs[last]) if die != last else 0.0
            rows = int(self._share(die) * 1e6)
            seconds = busy_s * PRODUCTION_MOE_SHARE * self._share(die) * self.slow.get(die, 1.0) / needs[last]
            work = ExpertWork(before.work.seconds + seconds, before.work.rows + rows, 0)
            worked_s = before.worked_s + busy_s * need / needs[last]
            self._facts[die] = ExchangeFacts((), (), tuple(waited), worked_s, work)
        return self._facts

    def _need(self, die: int, sequences: SequenceShare) -> float:
        """Time that a die needs for a step, relative to a normal die with the most rows."""
        experts = PRODUCTION_MOE_SHARE * self._share(die)
        return self.slow.get(die, 1.0) * ((1 - PRODUCTION_MOE_SHARE) * sequences(die) + experts)

    def _share(self, die: int) -> float:
        return self.shares[die] if die < len(self.shares) else 1.0

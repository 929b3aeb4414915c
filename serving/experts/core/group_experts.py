"""A shell's knowledge of its group's experts: what lies in the slots of each member, and the maps that follow from it.

Of processes that the shell has regrouped, its ledger knows. What a new process holds is in its offer. A shell that has
taken a group over knows nothing of those that serve: it tells them that moves have ended, and they say what they hold.
"""

from collections.abc import Sequence

from serving.experts.core.regroup import regroup_map
from serving.experts.core.slot_ledger import SlotLedger
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import Held
from serving.values.group import RankOffer


class GroupExperts:
    """Experts of one group. `ledger` is None until the group is regrouped for the first time."""

    def __init__(self) -> None:
        self.ledger: SlotLedger | None = None
        self._pids: dict[int, int] = {}
        """By rank: the processes that the ledger knows."""
        self._said: dict[int, Held] = {}
        """By process: what ranks said that the ledger does not know."""

    def is_known(self, rank: int, pid: int) -> bool:
        """Whether it is known for certain what lies in the slots of a rank that serves."""
        return pid in self._said or self._pids.get(rank) == pid

    def on_stopped(self, rank: int, pid: int, held: Held) -> None:
        """A rank was told that moves have ended, and says what it holds."""
        if self.ledger is not None and self._pids.get(rank) == pid:
            self.ledger.stopped(rank, held)
        else:
            self._said[pid] = held

    def regroup(self, members: Sequence[RankOffer], ranks: int, version: int) -> ExpertMap:
        """The map for other members, in use from now on as far as this shell is concerned.

        No slot that is being loaded is in it. A mover must have been abandoned before.

        Args:
            members: those that serve are known.
            ranks: of the group, some of which may be missing.
            version: that the map has at least.
        """
        ledger = self.ledger
        known = [one.rank for one in members if ledger is not None and self._pids.get(one.rank) == one.pid]
        newcomers = {one.rank: self._said.get(one.pid, one.held) for one in members if one.rank not in known}
        contents = newcomers | {rank: ledger.held(rank) for rank in known if ledger is not None}
        experts = members[0].experts
        if ledger is not None:
            version = max(version, ledger.next_version())
        found = regroup_map(contents, max(ranks, 1 + max(contents)), experts, version)
        if ledger is None:
            self.ledger = ledger = SlotLedger(found, experts)
        ledger.regroup(found, newcomers)
        self._pids = {one.rank: one.pid for one in members}
        self._said.clear()
        return found

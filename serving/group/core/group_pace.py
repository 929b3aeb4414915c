"""Pace of a group's ranks, from their counters, and the measures against a slow rank.

Ranks are compared by the time of their experts for the same work: rows, and for each expert with any rows the reading
of its weights, which costs as much as `NET_ROWS` rows. The time excludes waits, and attention, which depends on a
rank's own sequences. So neither a waiting nor a heavily loaded rank counts as slow.
"""

import statistics
from collections.abc import Mapping
from typing import Literal

from serving.group.core.straggler import MeasureChanged, RankPace, StragglerMeasure, StragglerRules, Stragglers
from serving.values.expert_map import ExchangeFacts

StragglerMode = Literal["off", "balance", "drain"]
"""`[experts] straggler`."""

NET_ROWS = 4.0
"""Rows whose products take as long as reading one expert's weights: between those measured with storyteller on a busy
machine, 1 in BF16 and 8 in float32. Twice as many or as few change the pace of a rank with half of the rows for each
expert by a tenth."""
LEAST_WORK_S = 0.02
"""Least time of experts in an interval that is judged [s]: a few hundred layers of a small model."""
HOLDS_S = 20.0
"""A rank must be slow throughout this time [s]: a neighbour's burst or a garbage collection is shorter."""
LEAST_LOOKS = 4
LEAST_SHARE = 0.1
"""Least fraction of its sequences that a slow rank keeps: without work its pace could not be measured."""


class GroupPace:
    """Paces of one group. Time is passed in.

    Args:
        mode: strongest measure; paces are measured in any case.
        slice_s: time between two looks [s].
    """

    def __init__(self, mode: StragglerMode, slice_s: float) -> None:
        furthest = {
            "off": StragglerMeasure.NONE,
            "balance": StragglerMeasure.FEWER_SEQUENCES,
            "drain": StragglerMeasure.DRAIN,
        }
        looks = max(LEAST_LOOKS, round(HOLDS_S / slice_s))
        self._stragglers = Stragglers(StragglerRules(looks=looks, furthest=furthest[mode]))
        self._pids: dict[int, int] = {}
        self._before: dict[int, ExchangeFacts] = {}
        self._new: dict[int, ExchangeFacts] = {}
        self._treated: dict[int, MeasureChanged] = {}

    def follow(self, pids: Mapping[int, int]) -> None:
        """Set the members.

        Args:
            pids: of their processes, by rank.
        """
        same = {rank for rank, pid in pids.items() if self._pids.get(rank) == pid}
        self._stragglers.keep({rank: rank not in same for rank in pids})
        self._treated = {rank: one for rank, one in self._treated.items() if rank in same}
        self._before = {rank: facts for rank, facts in self._before.items() if rank in same}
        self._new.clear()
        self._pids = dict(pids)

    def count(self, rank: int, facts: ExchangeFacts) -> None:
        """Take a member's counters since it joined."""
        self._new[rank] = facts

    def look(self, now: float) -> list[MeasureChanged]:
        """Judge the counts since the last call. Call it once in each slice."""
        intervals = {
            rank: _since(self._before[rank], facts) for rank, facts in self._new.items() if rank in self._before
        }
        self._before |= self._new
        self._new = {}
        changes = self._stragglers.look(paces(intervals), now)
        for one in changes:
            self._treated[one.rank] = one
            if one.measure is StragglerMeasure.NONE:
                del self._treated[one.rank]
        return changes

    def speeds(self) -> dict[int, float]:
        """Speeds of ranks under a measure, for `split`; all others have 1."""
        return {rank: one.speed for rank, one in self._treated.items()}

    def share(self, rank: int) -> float:
        """Fraction of its usual sequences that a rank gets."""
        treated = self._treated.get(rank)
        return max(LEAST_SHARE, treated.sequences) if treated is not None else 1.0

    def to_drain(self) -> list[int]:
        """Ranks to drain and replace as soon as possible; at most one."""
        return [rank for rank, one in self._treated.items() if one.measure is StragglerMeasure.DRAIN]

    def ratios(self) -> dict[int, float]:
        """Time of each rank for the same work over the median's, where known."""
        return self._stragglers.ratios()

    def measures(self) -> dict[int, str]:
        """Measures in force, by rank."""
        return {rank: one.measure.value for rank, one in self._treated.items()}


def paces(intervals: Mapping[int, ExchangeFacts]) -> dict[int, RankPace]:
    """Paces of ranks that had work.

    Args:
        intervals: what was counted in it, by rank.
    """
    totals = {rank: sum(facts.waited_s) + facts.worked_s for rank, facts in intervals.items()}
    awaited = {rank: _awaited(rank, intervals, totals) for rank in intervals}
    usual = statistics.median(awaited.values()) if awaited else 0.0
    found = {}
    for rank, facts in intervals.items():
        done = facts.work.rows + NET_ROWS * facts.work.nets
        if facts.work.seconds >= LEAST_WORK_S and done:
            found[rank] = RankPace(facts.work.seconds / done, max(0.0, awaited[rank] - usual))
    return found


def _awaited(rank: int, intervals: Mapping[int, ExchangeFacts], totals: Mapping[int, float]) -> float:
    """Share of step time that every other rank waited for this one: the minimum over other ranks that had steps."""
    shares = []
    for other, facts in intervals.items():
        total = totals[other]
        if other != rank and any(facts.waited_s):
            shares.append(facts.waited_s[rank] / total if rank < len(facts.waited_s) else 0.0)
    return min(shares, default=0.0)


def _since(before: ExchangeFacts, now: ExchangeFacts) -> ExchangeFacts:
    """Counts between two times. Sizes of lists differ if the group's windows were replaced."""
    work, was = now.work, before.work
    waited = tuple(
        max(0.0, one - (before.waited_s[rank] if rank < len(before.waited_s) else 0.0))
        for rank, one in enumerate(now.waited_s)
    )
    done = type(work)(work.seconds - was.seconds, work.rows - was.rows, work.nets - was.nets)
    return ExchangeFacts((), (), waited, max(0.0, now.worked_s - before.worked_s), done)

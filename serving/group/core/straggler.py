"""Measures against a slow rank: fewer of the experts' tokens, then fewer sequences, then a drain.

Each layer of a rank's step waits for its peers' experts, so the slowest sets the pace. The next measure is taken only
while other ranks still wait for this one after the previous measure; measures are taken back one by one once the rank
is as fast as the others.

    none ─► fewer_tokens ─► fewer_sequences ─► drain      slow and awaited in `looks` consecutive intervals
    none ◄─ fewer_tokens ◄─ fewer_sequences               fine in `looks` intervals, and never slow in between
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec


class StragglerMeasure(StrEnum):
    """Measures against a slow rank, mildest first."""

    NONE = "none"
    FEWER_TOKENS = "fewer_tokens"
    FEWER_SEQUENCES = "fewer_sequences"
    DRAIN = "drain"


_ORDER = tuple(StragglerMeasure)


class RankPace(msgspec.Struct, frozen=True):
    """A rank over the last interval.

    Args:
        seconds_per_row: of experts' work, without waits.
        awaited: share of the interval in which all others waited for this rank, minus their usual wait for a rank, 0 to
            1.
    """

    seconds_per_row: float
    awaited: float


class MeasureChanged(msgspec.Struct, frozen=True):
    """Effect: apply a measure to a rank.

    Args:
        speed: for `split`; 1 unless it is slow.
        sequences: fraction of its usual sequences.
    """

    rank: int
    measure: StragglerMeasure
    speed: float
    sequences: float
    reason: str


@dataclass(frozen=True, slots=True)
class StragglerRules:
    """When a measure is taken.

    Args:
        awaited: share of an interval that others may wait for one rank.
        slow: seconds a row over the median, from which a rank counts as slow; below `fine` it no longer does.
        looks: consecutive intervals that must agree.
        patience_s: least time between two measures in the group, in which the first one can take effect [s].
        drain_rest_s: least time between two drains [s]: if a new process is slow as well, its process is not the cause.
        furthest: strongest measure allowed.
    """

    awaited: float = 0.1
    slow: float = 1.3
    fine: float = 1.1
    looks: int = 3
    patience_s: float = 30.0
    drain_rest_s: float = 600.0
    furthest: StragglerMeasure = StragglerMeasure.DRAIN


@dataclass(slots=True)
class _Rank:
    measure: StragglerMeasure = StragglerMeasure.NONE
    late: int = 0
    well: int = 0
    ratio: float = 1.0


class Stragglers:
    """Ranks of one group. Takes one measure at a time, and drains at most one rank."""

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self._rules = rules or StragglerRules()
        self._ranks: dict[int, _Rank] = {}
        self._taken_at = self._drained_at = float("-inf")

    def measures(self) -> dict[int, StragglerMeasure]:
        """Measure in force for each rank."""
        return {rank: one.measure for rank, one in self._ranks.items()}

    def ratios(self) -> dict[int, float]:
        """Seconds a row of each rank over the median, in its last known interval."""
        return {rank: one.ratio for rank, one in self._ranks.items()}

    def keep(self, ranks: Mapping[int, bool]) -> None:
        """Forget all ranks but these.

        Args:
            ranks: members; True = a different process from that at the last call, whose counts start over.
        """
        self._ranks = {rank: one for rank, one in self._ranks.items() if not ranks.get(rank, True)}

    def look(self, paces: Mapping[int, RankPace], now: float) -> list[MeasureChanged]:
        """Judge one interval. Call it at a constant interval, since `looks` counts calls.

        Args:
            paces: of the ranks that had work. With fewer than three, no rank can be singled out as slow. The counts of
                a missing rank start over.
        """
        for rank, one in self._ranks.items():
            if rank not in paces:
                one.late = one.well = 0
        if len(paces) < 3:
            return []
        median = statistics.median(pace.seconds_per_row for pace in paces.values())
        effects = []
        for rank, pace in sorted(paces.items()):
            one = self._ranks.setdefault(rank, _Rank())
            one.ratio = pace.seconds_per_row / median if median > 0 else 1.0
            changed = self._judge(rank, one, pace, now)
            if changed is not None:
                effects.append(changed)
        return effects

    def _judge(self, rank: int, one: _Rank, pace: RankPace, now: float) -> MeasureChanged | None:
        rules = self._rules
        late = one.ratio >= rules.slow and pace.awaited >= rules.awaited
        one.late = one.late + 1 if late else 0
        one.well = 0 if one.ratio >= rules.slow else one.well + (one.ratio < rules.fine)
        place = _ORDER.index(one.measure)
        if one.late >= rules.looks and self._may_take(place + 1, now):
            waited = f"others waited for it {pace.awaited:.0%} of the time more than for others"
            return self._change(rank, one, _ORDER[place + 1], now, f"{one.ratio:.2f} times the median, {waited}")
        if one.well >= rules.looks and one.measure not in (StragglerMeasure.NONE, StragglerMeasure.DRAIN):
            return self._change(rank, one, _ORDER[place - 1], now, f"{one.ratio:.2f} times the median: well again")
        return None

    def _may_take(self, place: int, now: float) -> bool:
        rules = self._rules
        if place > _ORDER.index(rules.furthest) or now - self._taken_at < rules.patience_s:
            return False
        draining = any(one.measure is StragglerMeasure.DRAIN for one in self._ranks.values())
        rests = now - self._drained_at < rules.drain_rest_s
        return _ORDER[place] is not StragglerMeasure.DRAIN or not (draining or rests)

    def _change(self, rank: int, one: _Rank, measure: StragglerMeasure, now: float, reason: str) -> MeasureChanged:
        if _ORDER.index(measure) > _ORDER.index(one.measure):
            self._taken_at = now
        if measure is StragglerMeasure.DRAIN:
            self._drained_at = now
        self._ranks[rank] = _Rank(measure, ratio=one.ratio)
        slow = measure is not StragglerMeasure.NONE
        fewer = _ORDER.index(measure) >= _ORDER.index(StragglerMeasure.FEWER_SEQUENCES)
        speed = min(1.0, 1 / max(one.ratio, 1.0)) if slow else 1.0
        sequences = 0.0 if measure is StragglerMeasure.DRAIN else speed if fewer else 1.0
        return MeasureChanged(rank, measure, speed, sequences, reason)

"""A rank that is slow but alive: it gets less of the experts' tokens, then fewer sequences, then it is drained.

All ranks take a step together, so the slowest sets the pace. A rank is treated one measure further only while others
still wait for it after the measure before, and step by step back once it is as fast as the others again.
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
        awaited: share of the interval in which all others had to wait for this rank, 0 to 1.
    """

    seconds_per_row: float
    awaited: float


class MeasureChanged(msgspec.Struct, frozen=True):
    """Effect: treat a rank so from now on.

    Args:
        speed: for `split`: 1 as long as it is not slow.
        sequences: share of the sequences it had before that it may have.
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
        looks: intervals in a row that must agree.
        patience_s: how long a measure may take to show, before the next one [s].
    """

    awaited: float = 0.1
    slow: float = 1.3
    fine: float = 1.1
    looks: int = 3
    patience_s: float = 30.0


@dataclass(slots=True)
class _Rank:
    measure: StragglerMeasure = StragglerMeasure.NONE
    late: int = 0
    well: int = 0
    since: float = float("-inf")


class Stragglers:
    """Ranks of one group. At most one is drained at a time; ranks that are gone are forgotten."""

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self._rules = rules or StragglerRules()
        self._ranks: dict[int, _Rank] = {}

    def measures(self) -> dict[int, StragglerMeasure]:
        """Measure in force for each rank."""
        return {rank: one.measure for rank, one in self._ranks.items()}

    def look(self, paces: Mapping[int, RankPace], now: float) -> list[MeasureChanged]:
        """Judge one interval; called at the same interval, since `looks` counts calls.

        Args:
            paces: of the ranks that had work. With fewer than three there is no telling which is slow.
        """
        self._ranks = {rank: self._ranks.get(rank, _Rank()) for rank in paces}
        if len(paces) < 3:
            return []
        median = statistics.median(pace.seconds_per_row for pace in paces.values())
        effects = []
        for rank, pace in sorted(paces.items()):
            ratio = pace.seconds_per_row / median if median > 0 else 1.0
            changed = self._judge(rank, pace, ratio, now)
            if changed is not None:
                effects.append(changed)
        return effects

    def _judge(self, rank: int, pace: RankPace, ratio: float, now: float) -> MeasureChanged | None:
        one, rules = self._ranks[rank], self._rules
        late = ratio >= rules.slow and pace.awaited >= rules.awaited
        one.late = one.late + 1 if late else 0
        one.well = one.well + 1 if ratio < rules.fine else 0
        place = _ORDER.index(one.measure)
        if one.late >= rules.looks and now - one.since >= rules.patience_s and place + 1 < len(_ORDER):
            if _ORDER[place + 1] is StragglerMeasure.DRAIN and self._draining():
                return None
            waited = f"others waited for it {pace.awaited:.0%} of the time"
            return self._change(rank, _ORDER[place + 1], ratio, now, f"{ratio:.2f} times the median, {waited}")
        if one.well >= rules.looks and one.measure not in (StragglerMeasure.NONE, StragglerMeasure.DRAIN):
            return self._change(rank, _ORDER[place - 1], ratio, now, f"{ratio:.2f} times the median: well again")
        return None

    def _change(self, rank: int, measure: StragglerMeasure, ratio: float, now: float, reason: str) -> MeasureChanged:
        self._ranks[rank] = _Rank(measure, since=now)
        slow = measure is not StragglerMeasure.NONE
        fewer = _ORDER.index(measure) >= _ORDER.index(StragglerMeasure.FEWER_SEQUENCES)
        speed = min(1.0, 1 / max(ratio, 1.0)) if slow else 1.0
        sequences = 0.0 if measure is StragglerMeasure.DRAIN else speed if fewer else 1.0
        return MeasureChanged(rank, measure, speed, sequences, reason)

    def _draining(self) -> bool:
        return any(one.measure is StragglerMeasure.DRAIN for one in self._ranks.values())

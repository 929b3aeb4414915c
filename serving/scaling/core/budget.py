"""Sharing NPUs out between the pools: everyone's wish if there is room, else in the proportion of the wishes.

A system serves as much as its scarcer pool: the best use of too few NPUs gives each pool the same part of what it
wants. Two things stand above the proportion: the least of each pool, and a pool that lost something and must keep what
it has (decode: its replicas carry streams).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from serving.values.signals import ScalingSignals

BETTER = 1.1
"""A new split must serve this much more than the one there is: otherwise nobody moves."""


class Wish(Struct, frozen=True, gc=False):
    """Wish of one pool.

    Args:
        before: its target until now; `want`: the one it would have with NPUs for all.
        least: it gives nothing below this; `keep`: not before all others are down at theirs.
        npus: of one instance.
    """

    before: int
    want: int
    least: int
    keep: int
    npus: int


def share_out(wishes: Sequence[Wish], npus: int) -> list[int]:
    """Targets for pools in the order of a request's life; the later a pool, the more a request has invested there.

    Args:
        npus: that all of them may have.
    Returns: no more than wanted, no more than there is; below `least` only if there are not even NPUs for that.
    """
    if sum(wish.want * wish.npus for wish in wishes) <= npus:
        return [wish.want for wish in wishes]
    targets = [0] * len(wishes)
    for floor in ("least", "keep"):
        for place in reversed(range(len(wishes))):
            wish = wishes[place]
            room = (npus - _taken(targets, wishes)) // wish.npus
            targets[place] += max(0, min(min(getattr(wish, floor), wish.want) - targets[place], room))
    _fill(targets, wishes, npus)
    now = [min(wish.before, wish.want) for wish in wishes]
    stands = all(min(w.least, w.want) <= n and min(w.keep, w.want) <= n for w, n in zip(wishes, now, strict=True))
    if stands and _taken(now, wishes) <= npus and _served(targets, wishes) < BETTER * _served(now, wishes):
        _fill(now, wishes, npus)
        return now
    return targets


def _taken(targets: Sequence[int], wishes: Sequence[Wish]) -> int:
    return sum(target * wish.npus for target, wish in zip(targets, wishes, strict=True))


def _served(targets: Sequence[int], wishes: Sequence[Wish]) -> float:
    return min((target / wish.want for target, wish in zip(targets, wishes, strict=True) if wish.want), default=1.0)


def _fill(targets: list[int], wishes: Sequence[Wish], npus: int) -> None:
    """Give what is left, always to the pool that has the smallest part of its wish. Effects: `targets` grow."""
    while True:
        left = npus - _taken(targets, wishes)
        open_ = [p for p, wish in enumerate(wishes) if targets[p] < wish.want and wish.npus <= left]
        if not open_:
            return
        targets[min(open_, key=lambda p: (targets[p] / wishes[p].want, -p))] += 1


# How many NPUs the pools may plan with: the budget, and what is really there.
#
# What a pool has keeps it has until it is sure that the hardware is gone: two looks that were taken at slightly
# different moments must not make an instance stop. Growth, however, needs NPUs that are free now or on their way.

SURE_LOOKS = 2
"""So many looks in a row must say that instances have no place."""
SLOW_START = 4.0
SLOW_START_S = 10.0
"""An instance that has not come after this many start-up times and seconds, while no NPU is free, has none."""


@dataclass(frozen=True, slots=True)
class Room:
    """Answer of one look.

    Args:
        npus: that the engine pools may have together from now on.
        placeless: NPUs that instances wait for in vain.
    """

    npus: int
    placeless: int

    def words(self, signals: ScalingSignals, budget: int) -> str:
        """Text of what there is room for, and what bounds it.

        Args:
            budget: `[autoscaler] npu_budget`.
        """
        words = f"{self.npus} NPUs for all pools, {signals.npus_free} of {signals.npus_total} NPUs are free"
        if budget and self.npus >= min(budget, signals.npus_total):
            words += f", npu_budget is {budget}"
        return f"{words}, instances of {self.placeless} NPUs have no place" if self.placeless else words


@dataclass(slots=True)
class RoomWatch:
    """Judges hardware over several looks.

    Args:
        npu_budget: of the configuration; 0 = all there are.
    """

    npu_budget: int = 0
    _short_looks: int = 0
    _stuck_since: float | None = None
    _running_before: int = -1

    def see(self, signals: ScalingSignals) -> Room:
        """Judge. Effects: remembers since when instances have had no place."""
        pools = signals.pools
        allowed = min(signals.npus_total, self.npu_budget) if self.npu_budget else signals.npus_total
        planned = sum(pool.target * pool.npus_per_instance for pool in pools)
        leaving = sum(pool.draining * pool.npus_per_instance for pool in pools)
        owed = self._owed(signals)
        free = signals.npus_free + leaving - owed
        if free >= 0:
            self._short_looks, placeless = 0, 0
        else:
            self._short_looks += 1
            placeless = -free
        sure = self._short_looks >= SURE_LOOKS or self._stuck(signals)
        if sure and not placeless:
            placeless = self._smallest_missing(signals)
        room = planned - placeless if sure else planned + max(0, free)
        return Room(max(0, min(allowed, room)), placeless if sure else 0)

    @staticmethod
    def _owed(signals: ScalingSignals) -> int:
        """NPUs that instances which were asked for surely have not got yet."""
        held = sum((pool.running + pool.draining) * pool.npus_per_instance for pool in signals.pools)
        perhaps_placed = max(0, signals.npus_total - held - signals.npus_free)
        starting = sum(pool.starting * pool.npus_per_instance for pool in signals.pools)
        smallest = min((pool.npus_per_instance for pool in signals.pools if pool.starting), default=1)
        unplaced = max(0, starting - perhaps_placed) // smallest * smallest
        unseen = sum(max(0, p.target - p.running - p.starting) * p.npus_per_instance for p in signals.pools)
        return unplaced + unseen

    def _stuck(self, signals: ScalingSignals) -> bool:
        """Whether instances have been starting for far too long while no place is free."""
        running = sum(pool.running for pool in signals.pools)
        missing = self._smallest_missing(signals)
        if not missing:
            self._stuck_since = None
        elif self._stuck_since is None or signals.npus_free >= missing or running > self._running_before:
            self._stuck_since = signals.now
        self._running_before = running
        if self._stuck_since is None:
            return False
        return signals.now - self._stuck_since > SLOW_START * signals.start_s + SLOW_START_S

    @staticmethod
    def _smallest_missing(signals: ScalingSignals) -> int:
        """NPUs of one instance that is still starting, the smallest; 0 = none is."""
        if any(pool.draining for pool in signals.pools):
            return 0
        return min((pool.npus_per_instance for pool in signals.pools if pool.starting), default=0)

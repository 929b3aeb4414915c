"""Distribution of NPUs among the pools: every request if all fit, else in proportion to the requests.

The scarcest pool limits a system's throughput, so with too few NPUs each pool gets the same share of its request. Two
rules override the proportion: the minimum of each pool, and a pool that has lost instances keeps the rest (decode: its
replicas carry streams).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from serving.values.signals import ScalingSignals

BETTER = 1.1
"""Factor by which a new split must serve more than the current one to replace it."""


class NpuRequest(Struct, frozen=True, gc=False):
    """Wish of one pool.

    Args:
        before: current target.
        want: target with unlimited NPUs.
        least: minimum.
        keep: size below which the pool gives up instances only when all others are at their minimum.
        npus: of one instance.
    """

    before: int
    want: int
    least: int
    keep: int
    npus: int


def share_out(requests: Sequence[NpuRequest], npus: int) -> list[int]:
    """Targets for pools, which are listed in the order in which a request passes them; later pools take precedence.

    Args:
        npus: available to all pools together.
    Returns: targets within the requests and `npus`; below `least` only if the NPUs do not suffice for all minimums.
    """
    if sum(request.want * request.npus for request in requests) <= npus:
        return [request.want for request in requests]
    targets = [0] * len(requests)
    for floor in ("least", "keep"):
        for place in reversed(range(len(requests))):
            request = requests[place]
            room = (npus - _taken(targets, requests)) // request.npus
            targets[place] += max(0, min(min(getattr(request, floor), request.want) - targets[place], room))
    _fill(targets, requests, npus)
    now = [min(request.before, request.want) for request in requests]
    stands = all(min(w.least, w.want) <= n and min(w.keep, w.want) <= n for w, n in zip(requests, now, strict=True))
    if stands and _taken(now, requests) <= npus and _served(targets, requests) < BETTER * _served(now, requests):
        _fill(now, requests, npus)
        return now
    return targets


def _taken(targets: Sequence[int], requests: Sequence[NpuRequest]) -> int:
    return sum(target * request.npus for target, request in zip(targets, requests, strict=True))


def _served(targets: Sequence[int], requests: Sequence[NpuRequest]) -> float:
    return min(
        (target / request.want for target, request in zip(targets, requests, strict=True) if request.want), default=1.0
    )


def _fill(targets: list[int], requests: Sequence[NpuRequest], npus: int) -> None:
    """Add the remaining NPUs to `targets`, always for the pool with the smallest share of its request."""
    while True:
        left = npus - _taken(targets, requests)
        open_ = [p for p, request in enumerate(requests) if targets[p] < request.want and request.npus <= left]
        if not open_:
            return
        targets[min(open_, key=lambda p: (targets[p] / requests[p].want, -p))] += 1


# NPUs that the pools may plan with: the budget, and the existing hardware.
#
# A pool keeps its instances until the loss of hardware is certain: two snapshots taken at slightly different times must
# not stop an instance. Growth, however, needs NPUs that are free now or will be when draining instances end.

SURE_LOOKS = 2
"""Consecutive polls that must find instances without a place."""
SLOW_START = 4.0
SLOW_START_S = 10.0
"""An instance that does not serve after this many start times plus `SLOW_START_S`, with no free NPU, has no place."""


@dataclass(frozen=True, slots=True)
class Room:
    """Result of one poll.

    Args:
        npus: available to all engine pools together from now on.
        placeless: NPUs of instances that cannot be placed.
    """

    npus: int
    placeless: int

    def words(self, signals: ScalingSignals, budget: int) -> str:
        """The available NPUs and their limit as text.

        Args:
            budget: `[autoscaler] npu_budget`.
        """
        words = f"{self.npus} NPUs for all pools, {signals.npus_free} of {signals.npus_total} NPUs are free"
        if budget and self.npus >= min(budget, signals.npus_total):
            words += f", npu_budget is {budget}"
        return f"{words}, instances of {self.placeless} NPUs have no place" if self.placeless else words


@dataclass(slots=True)
class CapacityWatch:
    """Judges hardware over several polls.

    Args:
        npu_budget: of the configuration; 0 = all NPUs.
    """

    npu_budget: int = 0
    _short_looks: int = 0
    _stuck_since: float | None = None
    _running_before: int = -1

    def see(self, signals: ScalingSignals) -> Room:
        """NPUs available now; records since when instances have had no place."""
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
        """NPUs that requested instances certainly do not have yet."""
        held = sum((pool.running + pool.draining) * pool.npus_per_instance for pool in signals.pools)
        perhaps_placed = max(0, signals.npus_total - held - signals.npus_free)
        starting = sum(pool.starting * pool.npus_per_instance for pool in signals.pools)
        smallest = min((pool.npus_per_instance for pool in signals.pools if pool.starting), default=1)
        unplaced = max(0, starting - perhaps_placed) // smallest * smallest
        unseen = sum(max(0, p.target - p.running - p.starting) * p.npus_per_instance for p in signals.pools)
        return unplaced + unseen

    def _stuck(self, signals: ScalingSignals) -> bool:
        """Whether instances have been starting for too long while no NPUs are free for them."""
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
        """NPUs of the smallest starting instance; 0 if none is starting or any is draining."""
        if any(pool.draining for pool in signals.pools):
            return 0
        return min((pool.npus_per_instance for pool in signals.pools if pool.starting), default=0)

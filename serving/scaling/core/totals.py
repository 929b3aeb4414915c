"""Totals over sources that join and leave: counts of a departed source remain, and restarts do not subtract."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from serving.values.signals import CacheSignals, Traffic

FORGET_S = 3600.0
"""A source silent for this long will not return under its name."""


class SourceTotals:
    """Sums of counters that only grow, source by source.

    Args:
        width: counters of each source.
    """

    def __init__(self, width: int) -> None:
        self.sums = [0.0] * width
        self._last: dict[str, tuple[float, Sequence[float]]] = {}

    def begin(self, source: str, counters: Sequence[float], now: float) -> None:
        """Register an unknown source with counts made elsewhere: only later increases are added to the sums."""
        self._last.setdefault(source, (now, tuple(counters)))

    def update(self, source: str, counters: Sequence[float], now: float) -> None:
        """Add the increase of a source's counters. If one has fallen, the source has restarted: all counts are new.

        Sources silent for `FORGET_S` are dropped; their counts remain in the sums.
        """
        assert len(counters) == len(self.sums)
        _, before = self._last.get(source, (now, (0.0,) * len(counters)))
        if any(new < old for new, old in zip(counters, before, strict=True)):
            before = (0.0,) * len(counters)
        for index, (new, old) in enumerate(zip(counters, before, strict=True)):
            self.sums[index] += new - old
        self._last[source] = (now, tuple(counters))
        if len(self._last) > 1:
            self._last = {name: one for name, one in self._last.items() if now - one[0] < FORGET_S}


# Differences of totals between two polls.


class Gains(Struct, frozen=True, gc=False):
    """Gains of the traffic in `seconds` > 0; the names are those of `Traffic`."""

    seconds: float
    arrived: int
    arrived_tokens: int
    uncached_tokens: int
    finished: int
    ttft_met: int
    ttft_missed: int
    tpot_met: int
    tpot_missed: int
    rejected: int


def traffic_gains(before: Traffic, after: Traffic, seconds: float) -> Gains:
    """Differences, at least 0: a restarted gateway must not appear as negative traffic."""
    return Gains(
        seconds=seconds,
        arrived=max(0, after.arrived - before.arrived),
        arrived_tokens=max(0, after.arrived_tokens - before.arrived_tokens),
        uncached_tokens=max(0, after.uncached_tokens - before.uncached_tokens),
        finished=max(0, after.finished - before.finished),
        ttft_met=max(0, after.ttft_met - before.ttft_met),
        ttft_missed=max(0, after.ttft_missed - before.ttft_missed),
        tpot_met=max(0, after.tpot_met - before.tpot_met),
        tpot_missed=max(0, after.tpot_missed - before.tpot_missed),
        rejected=max(0, after.rejected - before.rejected),
    )


class CacheGains(Struct, frozen=True, gc=False):
    """Gains of the KV-cache pool in `seconds` > 0; the names are those of `CacheSignals`."""

    seconds: float
    looked_up_tokens: int
    hit_tokens: int
    evicted_bytes: int


def cache_gains(before: CacheSignals, after: CacheSignals, seconds: float) -> CacheGains:
    """Differences, at least 0: the counters of a server that left are missing from the totals."""
    return CacheGains(
        seconds=seconds,
        looked_up_tokens=max(0, after.looked_up_tokens - before.looked_up_tokens),
        hit_tokens=max(0, after.hit_tokens - before.hit_tokens),
        evicted_bytes=max(0, after.evicted_bytes - before.evicted_bytes),
    )


# Totals over a recent window of polls.


@dataclass(slots=True)
class Recent:
    """Sum of the amounts added within the last `window_s`, and the time they cover."""

    window_s: float
    total: float = 0.0
    seconds: float = 0.0
    _parts: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, amount: float, seconds: float) -> None:
        """Add the gain of the last `seconds`; polls entirely outside the window are dropped, except the last."""
        self._parts.append((amount, seconds))
        self.total += amount
        self.seconds += seconds
        while len(self._parts) > 1 and self.seconds - self._parts[0][1] >= self.window_s:
            gone, gone_s = self._parts.popleft()
            self.total -= gone
            self.seconds -= gone_s

    @property
    def rate(self) -> float:
        """Per second; 0 before anything was added."""
        return max(0.0, self.total) / self.seconds if self.seconds > 0 else 0.0

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self.total = self.seconds = 0.0

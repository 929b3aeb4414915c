"""Meters of a memory server, in addition to its ledger's counters. Thread-safe, cheap per call."""

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

BOUNDS_S = (
    *(20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3),
    *(1.0, 2.0, 5.0, 10.0),
)
"""Upper ends of the buckets [s]; one more bucket holds what is above."""


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0


class Meters:
    """Counters and latency histograms by name, created at their first use.

    Args:
        durations: histograms that exist from the start.
    """

    def __init__(self, *durations: str) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._histograms: dict[str, _Histogram] = {name: _Histogram() for name in durations}

    def add(self, name: str, amount: int = 1) -> None:
        """Increase a counter."""
        with self._lock:
            self._counters[name] += amount

    def observe(self, name: str, seconds: float, amounts: tuple[tuple[str, int], ...] = ()) -> None:
        """Count one duration in its histogram, and increase some counters."""
        bucket = bisect_left(BOUNDS_S, seconds)
        with self._lock:
            histogram = self._histograms.get(name)
            if histogram is None:
                histogram = self._histograms.setdefault(name, _Histogram())
            histogram.counts[bucket] += 1
            histogram.sum_s += seconds
            for counter, amount in amounts:
                self._counters[counter] += amount

    def snapshot(self) -> dict[str, Any]:
        """All meters as plain values: `{counters, bounds_s, histograms: {name: {counts, count, sum_s}}}`.

        `counts` has one number per bucket, not cumulative, and one for durations above the last bound.
        """
        with self._lock:
            return {
                "counters": dict(self._counters),
                "bounds_s": list(BOUNDS_S),
                "histograms": {
                    name: {"counts": list(one.counts), "count": sum(one.counts), "sum_s": one.sum_s}
                    for name, one in self._histograms.items()
                },
            }

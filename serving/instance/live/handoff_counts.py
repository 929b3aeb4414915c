"""Counts of one instance's pulls, by source node."""

import threading
from bisect import bisect_left

from serving.telemetry.handoff_paths import BOUNDS_S, MOST_SOURCES, OTHER


class HandoffPathCounts:
    """Counts of one instance. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, source: str, seconds: float, moved_bytes: int, *, failed: bool) -> None:
        """Count one pull.

        Args:
            source: node that had the blocks.
        """
        with self._lock:
            if source not in self._rows and len(self._rows) >= MOST_SOURCES:
                source = OTHER
            row = self._rows.setdefault(source, [0] * (len(BOUNDS_S) + 3))
            if failed:
                row[1] += 1
                return
            row[0] += moved_bytes
            row[2 + bisect_left(BOUNDS_S, seconds)] += 1
            self._sums[source] = self._sums.get(source, 0.0) + seconds

    def facts(self) -> dict[str, list[float]]:
        """The counts in the form to be reported: by source, bytes, failures, sum of durations [s], counts by bucket."""
        with self._lock:
            return {name: [row[0], row[1], self._sums.get(name, 0.0), *row[2:]] for name, row in self._rows.items()}

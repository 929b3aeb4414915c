"""Totals over sources that come and go: what a source counted stays when it is gone, and restarts do not subtract."""

from collections.abc import Sequence

FORGET_S = 3600.0
"""A source silent for this long will not come back under its name."""


class SourceTotals:
    """Sums of counters that only grow, source by source.

    Args:
        width: counters of each source.
    """

    def __init__(self, width: int) -> None:
        self.sums = [0.0] * width
        self._last: dict[str, tuple[float, Sequence[float]]] = {}

    def begin(self, source: str, counters: Sequence[float], now: float) -> None:
        """A source has counted so far where nobody listened any more: only what comes from now on is added.

        Effects: none on sources that are known.
        """
        self._last.setdefault(source, (now, tuple(counters)))

    def update(self, source: str, counters: Sequence[float], now: float) -> None:
        """A source's counters now. One that counts less than before began anew: all of it is new.

        Effects: forgets sources that have been silent for long.
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

"""Totals over the recent past: what a counter gained within a window of looks."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Recent:
    """Sum of what was added within the last `window_s`, and how long that is."""

    window_s: float
    total: float = 0.0
    seconds: float = 0.0
    _parts: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, amount: float, seconds: float) -> None:
        """Add the gain of the last `seconds`. Effects: forgets whole ticks beyond the window, never the last."""
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

"""Down with patience: a pool shrinks only to what was enough all the time lately."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class StabilizationWindow:
    """Remembers what was needed for `hold_s`."""

    hold_s: float
    _since: float | None = None
    _needs: deque[tuple[float, int]] = field(default_factory=deque)
    """Falling needs, each higher than all later ones."""

    def add(self, now: float, need: int) -> None:
        """Add the number needed from now on."""
        if self._since is None:
            self._since = now
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self.hold_s:
            self._needs.popleft()

    @property
    def highest(self) -> int:
        """The most that was needed within `hold_s`; 0 before the first."""
        return self._needs[0][1] if self._needs else 0

    def over(self, now: float) -> bool:
        """Whether `hold_s` was seen at all: nobody knows what was before the first look."""
        return self._since is not None and now - self._since >= self.hold_s

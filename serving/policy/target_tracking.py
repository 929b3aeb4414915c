"""How many instances a pool should have, from the work that it is given: up at once, down with patience.

Load is counted in instances: 3.2 means that as much work arrives as 3.2 fully used instances can do. The target leaves
the headroom that was asked for. A pool shrinks only by what even the highest load of the last `hold_s` did not need, so
that a dip between two bursts costs nothing, and load that wavers around a limit changes nothing.
"""

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """A pool's size, and why."""

    target: int
    reason: str


@dataclass(slots=True)
class TargetTracker:
    """Of one pool.

    Args:
        utilisation: of an instance that is aimed at, above 0 and up to 1.
        hold_s: how long a lower load must last before the pool shrinks.
        low, high: bounds of the target.
    """

    utilisation: float
    hold_s: float
    low: int
    high: int
    _needs: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now: float, instances: int, load: float) -> TargetDecision:
        """The size from now on.

        Args:
            instances: serving and coming up.
            load: work that arrives, in instances; see above.
        Effects: remembers the load for `hold_s`.
        """
        needed = min(self.high, max(self.low, math.ceil(load / self.utilisation - 1e-9)))
        self._needs.append((now, needed))
        while len(self._needs) > 1 and self._needs[1][0] <= now - self.hold_s:  # the first is what held until then
            self._needs.popleft()
        highest = max(need for _, need in self._needs)
        what = f"load of {load:.2f} instances at {self.utilisation:.0%}"
        if needed > instances:
            return TargetDecision(needed, f"{what} needs {needed}, there are {instances}")
        if highest < instances and self._needs[0][0] <= now - 0.9 * self.hold_s:
            return TargetDecision(highest, f"{what}; {highest} were enough for the last {self.hold_s:.0f} s")
        return TargetDecision(instances, f"{what}: {instances} stay")

"""Since when nobody has wanted anything: the clock of scaling to zero, and the bell that ends it."""

from dataclasses import dataclass

from serving.policy.scaling.signals import ScalingSignals


@dataclass(slots=True)
class IdleClock:
    """Counts from the last sign of a request.

    Args:
        idle_to_zero_s: a pool whose least is 0 goes there after this long.
    """

    idle_to_zero_s: float
    somebody: bool = False
    """Whether somebody waits or came since the look before."""
    _busy_at: float | None = None
    _arrived: int = 0

    def see(self, signals: ScalingSignals) -> None:
        """Look for signs. Effects: remembers when there was one; the first look counts as one."""
        arrived = signals.traffic.arrived
        first = self._busy_at is None
        self.somebody = under_way(signals) > 0 or (arrived != self._arrived and not first)
        if self.somebody or first:
            self._busy_at = signals.now
        self._arrived = arrived

    def seconds(self, now: float) -> float:
        """Without a request [s]."""
        return 0.0 if self._busy_at is None else now - self._busy_at

    def over(self, now: float) -> bool:
        """Whether it has been long enough for zero."""
        return self.seconds(now) >= self.idle_to_zero_s


def under_way(signals: ScalingSignals) -> int:
    """Requests and sequences that somebody waits for now."""
    return signals.traffic.queued + sum(pool.sequences for pool in signals.pools)

"""Since when nobody has wanted anything: the clock of scaling to zero, and the bell that ends it."""

from dataclasses import dataclass

from serving.values.signals import ScalingSignals


@dataclass(slots=True)
class IdleClock:
    """Counts from the last sign of a request.

    Args:
        idle_to_zero_s: a pool whose least is 0 goes there after this long.
    """

    idle_to_zero_s: float
    somebody: bool = False
    """Whether somebody waits or came since the look before."""
    waits: str = "0 requests wait"
    """Whoever that is, in words."""
    _busy_at: float | None = None
    _arrived: int = 0

    def see(self, signals: ScalingSignals) -> None:
        """Look for signs. Effects: remembers when there was one; the first look counts as one."""
        arrived = signals.traffic.arrived
        first = self._busy_at is None
        waiting, came = under_way(signals), 0 if first else arrived - self._arrived
        self.somebody = waiting > 0 or came != 0
        self.waits = f"{waiting} requests wait" if waiting or not came else f"{came} requests came since the last look"
        if self.somebody or first:
            self._busy_at = signals.now
        self._arrived = arrived

    def seconds(self, now: float) -> float:
        """Without a request [s]."""
        return 0.0 if self._busy_at is None else now - self._busy_at

    def over(self, now: float) -> bool:
        """Whether it has been long enough for zero."""
        return self.seconds(now) >= self.idle_to_zero_s

    def words(self, now: float) -> str:
        """Why it is time for zero."""
        return f"no request for {self.seconds(now):.0f} s, idle_to_zero_s is {self.idle_to_zero_s:g}"


def under_way(signals: ScalingSignals) -> int:
    """Requests and sequences that somebody waits for now."""
    return signals.traffic.queued + sum(pool.sequences for pool in signals.pools)

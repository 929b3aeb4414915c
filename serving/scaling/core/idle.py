"""Idle time without requests, for scaling to zero and waking up."""

from dataclasses import dataclass

from serving.values.signals import ScalingSignals


@dataclass(slots=True)
class IdleClock:
    """Measures the time since the last request.

    Args:
        idle_to_zero_s: idle time after which a pool with a minimum of 0 scales to zero.
    """

    idle_to_zero_s: float
    somebody: bool = False
    """Whether requests are in flight or have arrived since the previous poll."""
    waits: str = "0 requests wait"
    """The requests behind `somebody` as text."""
    _busy_at: float | None = None
    _arrived: int = 0

    def see(self, signals: ScalingSignals) -> None:
        """Record whether there are requests; the first poll counts as busy."""
        arrived = signals.traffic.arrived
        first = self._busy_at is None
        waiting, came = under_way(signals), 0 if first else arrived - self._arrived
        self.somebody = waiting > 0 or came != 0
        self.waits = f"{waiting} requests wait" if waiting or not came else f"{came} requests came since the last look"
        if self.somebody or first:
            self._busy_at = signals.now
        self._arrived = arrived

    def seconds(self, now: float) -> float:
        """Time without a request [s]."""
        return 0.0 if self._busy_at is None else now - self._busy_at

    def over(self, now: float) -> bool:
        """Whether the idle time suffices for scaling to zero."""
        return self.seconds(now) >= self.idle_to_zero_s

    def words(self, now: float) -> str:
        """Reason for scaling to zero, as text."""
        return f"no request for {self.seconds(now):.0f} s, idle_to_zero_s is {self.idle_to_zero_s:g}"


def under_way(signals: ScalingSignals) -> int:
    """Queued requests and in-flight sequences now."""
    return signals.traffic.queued + sum(pool.sequences for pool in signals.pools)

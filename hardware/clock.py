"""Clocks: real time, and real time run faster or slower.

A component receives a clock and never reads the system time, so the same code runs live and in a simulation. Only
differences between two readings are meaningful; zero is arbitrary.
"""

import math
import time
from typing import Protocol

from hardware.errors import ClockError
from hardware.units import Seconds


class Clock(Protocol):
    """Protocol of a time source."""

    def now(self) -> Seconds:
        """Seconds since an arbitrary start; never decreases."""
        ...


class WallClock:
    """The machine's monotonic clock, common to all processes of one host."""

    def now(self) -> Seconds:
        """Monotonic time [s]."""
        return Seconds(time.monotonic())


class ScaledClock:
    """Another clock, `time_scale` times as fast.

    With a scale of 0.01 one virtual second lasts 100 real ones: a slow machine can emulate fast hardware.
    """

    def __init__(self, time_scale: float, base: Clock | None = None) -> None:
        """
        Args:
            time_scale: virtual seconds per second of `base`; positive and finite.
            base: the clock to scale; a `WallClock` if absent.
        Raises: ClockError if the scale is not a positive finite number.
        """
        if not (math.isfinite(time_scale) and time_scale > 0):
            raise ClockError(f"time_scale must be a positive number, got {time_scale}; use 1.0 for real time")
        self._base: Clock = WallClock() if base is None else base
        self.time_scale = time_scale
        """Virtual seconds per base second."""
        self._origin = self._base.now()

    def now(self) -> Seconds:
        """Virtual time since this clock was made [s]."""
        return Seconds((self._base.now() - self._origin) * self.time_scale)

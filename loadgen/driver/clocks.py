"""Samples of the system's clocks: a machine that slept or a clock that jumped must not pass for a slow server."""

import time

from loadgen.driver.progress import ClockSample

SAMPLE_EVERY_S = 1.0


class ClockLog:
    """Takes a sample each second; `clock_warnings` of the metrics judges them."""

    def __init__(self) -> None:
        """Takes the first one."""
        self.samples: list[ClockSample] = [sample()]

    def tick(self, now_s: float) -> None:
        """Take a sample if it is time. `now_s`: of `time.monotonic()`."""
        if now_s - self.samples[-1].monotonic_s >= SAMPLE_EVERY_S:
            self.samples.append(sample())

    def close(self) -> list[ClockSample]:
        """Take the last one, and give all."""
        self.samples.append(sample())
        return self.samples


def sample() -> ClockSample:
    """The three clocks now."""
    boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
    return ClockSample(monotonic_s=time.monotonic(), realtime_s=time.time(), boottime_s=boottime_s)

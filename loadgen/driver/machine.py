"""Work of the machine's cores during a run besides this program's, by the kernel's own count."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from loadgen.driver.progress import ClockSample, MachineUse

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""Positions of user, nice, system, irq and softirq after the word `cpu`; a guest's time is in the first two."""
_STOLEN = 7


class MachineLog:
    """Difference of two readings of the counts: when this is made, and at its end."""

    def __init__(
        self,
        stat: Path = _STAT,
        *,
        now: Callable[[], float] = time.monotonic,
        own_cpu_s: Callable[[], float] = time.process_time,
        ticks_per_s: float | None = None,
    ) -> None:
        """Take the first look.

        Args:
            stat: the kernel's statistics file. own_cpu_s: CPU time of this process.
            ticks_per_s: of the kernel's counts; None = the system's.
        """
        self._stat, self._now, self._own_cpu_s = stat, now, own_cpu_s
        self._tick_s = 1 / (ticks_per_s or os.sysconf("SC_CLK_TCK"))
        self._begun = _counts(stat, self._tick_s)
        self._begun_s = now()
        self._own_s = own_cpu_s()

    def close(self, workers_cpu_s: float) -> MachineUse | None:
        """Use between the two readings; None where the system does not report it.

        Args:
            workers_cpu_s: CPU time of the worker processes between the readings, which counts as the program's own.
        """
        ended, lasted_s = _counts(self._stat, self._tick_s), self._now() - self._begun_s
        if self._begun is None or ended is None or lasted_s <= 0:
            return None
        own_s = self._own_cpu_s() - self._own_s + workers_cpu_s
        busy_s, stolen_s = (after - before for before, after in zip(self._begun, ended, strict=True))
        return MachineUse(
            cores=os.cpu_count() or 1,
            others_cores=max(0.0, busy_s - own_s) / lasted_s,
            stolen_cores=max(0.0, stolen_s) / lasted_s,
        )


def _counts(stat: Path, tick_s: float) -> tuple[float, float] | None:
    """CPU seconds used by anybody, and taken by the host of a virtual machine, over all cores since the start."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:]]
        return sum(ticks[place] for place in _BUSY) * tick_s, ticks[_STOLEN] * tick_s
    return None


# Samples of the system's clocks: a machine that slept or a clock that jumped must not pass for a slow server.

SAMPLE_EVERY_S = 1.0


class ClockLog:
    """Takes a sample each second; `clock_warnings` of the metrics judges them."""

    def __init__(self) -> None:
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

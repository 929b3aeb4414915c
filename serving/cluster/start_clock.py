"""Phases of a replica's start, measured in its own process: durations, so that no two hosts' clocks are compared."""

import os
import time

from hardware.ub.process import ProcessStamp
from serving.values.system_tally import IMPORTS, PROCESS, WEIGHTS

UNPICKLED_S = 5.0
"""Most time between the import of a replica's code, or the fork of a process that has it, and its construction, unless
the process waited for work in between.
"""


class StartClock:
    """Times a replica's start, from its construction until it serves.

    Args:
        importing_since, imported_at: start and end of the import of the replica's code, by `time.monotonic`.
        now: the same clock.
        age_s: of this process.
    """

    def __init__(
        self, importing_since: float, imported_at: float, now: float | None = None, age_s: float | None = None
    ) -> None:
        self._began = now = time.monotonic() if now is None else now
        age_s = own_age_s() if age_s is None else age_s
        forked = age_s < now - imported_at
        fresh = min(age_s, now - imported_at) <= UNPICKLED_S
        imports_s = imported_at - importing_since if fresh and not forked else 0.0
        self._phases = {
            PROCESS: max(0.0, age_s - (0.0 if forked else now - importing_since)) if fresh else 0.0,
            IMPORTS: imports_s,
        }

    def serves(self, now: float | None = None) -> dict[str, float]:
        """Finish the measurement: the replica serves now. Returns: seconds by phase: the process before it imported our
        code, imports, and the rest (model, memory, threads).
        """
        now = time.monotonic() if now is None else now
        return {**self._phases, WEIGHTS: now - self._began}


def own_age_s() -> float:
    """Age of this process [s], by the kernel's record."""
    ticks = ProcessStamp.own().start_ticks
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))

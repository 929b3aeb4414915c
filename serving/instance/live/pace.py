"""Pacing of simulated time: each step starts at the previous one's end, and waits can be cancelled.

A step's end is an absolute time: its start plus its predicted duration, scaled. The next step starts at that end, not
when the engine's thread continues, so that neither the thread's own work nor late wake-ups accumulate: they count
within the following step. Only an idle or very late thread restarts from the current time.
"""

import threading
import time
from collections.abc import Callable

CATCH_UP_S = 0.01
"""Maximum real time by which a step may start in the past [s]: above the engine's work between two steps, below a
noticeable delay.
"""


class Pace:
    """Lets simulated time pass for one instance.

    Args:
        time_scale: simulated seconds per real second.
        now: real time [s].
    """

    def __init__(self, time_scale: float, now: Callable[[], float] = time.monotonic) -> None:
        self._scale = time_scale
        self._now = now
        self._begin = self._end = now() - 2 * CATCH_UP_S
        self._stopped = threading.Event()
        self.steps = 0
        self.late_steps = 0
        """Steps whose simulated end passed before their results were ready; if there are many, the time scale is too
        high.
        """

    def begin(self) -> None:
        """Start a step: at the previous one's end if that is recent, else now."""
        now = self._now()
        self._begin = self._end if now - self._end <= CATCH_UP_S else now

    def end(self, duration_s: float) -> None:
        """Wait until the started step has ended.

        Args:
            duration_s: in simulated time.
        """
        self._end = self._begin + self.real_seconds(duration_s)
        self.steps += 1
        self.late_steps += not self._wait_until(self._end)

    def wait(self, since: float, duration_s: float) -> None:
        """Wait until this much simulated time has passed since the real time `since`. Any thread."""
        self._wait_until(since + self.real_seconds(duration_s))

    def real_seconds(self, duration_s: float) -> float:
        """Real duration of a simulated one [s]."""
        return duration_s / self._scale

    def real_now(self) -> float:
        """Real time [s], for `wait`."""
        return self._now()

    def stop(self) -> None:
        """End all current and future waits."""
        self._stopped.set()

    def _wait_until(self, end: float) -> bool:
        """Returns: whether there was anything to wait for."""
        left = end - self._now()
        if left > 0:
            self._stopped.wait(left)
        return left > 0

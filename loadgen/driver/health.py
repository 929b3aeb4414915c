"""How well one worker keeps up: a heart that should beat every 20 ms, CPU time, and the garbage collector kept quiet.

Theory of operation of the collector. A full collection of a worker's heap takes tens of milliseconds, at a moment of
Python's choosing. So everything that exists at the start is frozen, automatic collection is off during the run, and the
heart collects the youngest generation (about 0.1 ms) when no send is near, and in any case before it has become so
large that this would take a millisecond. Older generations are left alone: the hot
path makes no cycles that live long, and a worker lives for one run only.
"""

import gc
import time
from array import array

from loadgen.driver.pacer import Pacer

BEAT_S = 0.020
_QUIET_S = 0.002
_YOUNG_OBJECTS = 3_000
_TOO_MANY = 20_000


class Heart:
    """Beats on an absolute grid and notes how late each beat was."""

    def __init__(self, pacer: Pacer) -> None:
        """Not beating yet."""
        self._pacer = pacer
        self._due_s = 0.0
        self._lags_s = array("d")
        self._cpu_at_start_s = 0.0
        self._started_s = 0.0
        self._collecting_since_s = 0.0
        self.gc_pause_max_s = 0.0

    def start(self, at_s: float) -> None:
        """Begin to beat, first at a moment of `time.monotonic()`.

        Effects: freezes the heap and turns automatic garbage collection off in this process.
        """
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.callbacks.append(self._note_collection)
        self._cpu_at_start_s, self._started_s = time.process_time(), time.monotonic()
        self._due_s = at_s
        self._pacer.call_at(at_s, self._beat)

    def cpu_share(self) -> float:
        """CPU time of this process over wall time since `start`; 1 = one core busy all the time."""
        return (time.process_time() - self._cpu_at_start_s) / max(1e-9, time.monotonic() - self._started_s)

    def lags_s(self) -> "array[float]":
        """How late each beat was [s], float64 [beats]. Beats that a long pause skipped count with their own lag."""
        return self._lags_s

    def stop(self) -> None:
        """Effects: garbage collection is automatic again."""
        gc.callbacks.remove(self._note_collection)
        gc.enable()
        gc.unfreeze()

    def _beat(self) -> None:
        now_s = time.monotonic()
        while self._due_s <= now_s:
            self._lags_s.append(now_s - self._due_s)
            self._due_s += BEAT_S
        self._pacer.call_at(self._due_s, self._beat)
        young = gc.get_count()[0]
        if young > _TOO_MANY or (young > _YOUNG_OBJECTS and self._pacer.next_s - now_s > _QUIET_S):
            gc.collect(0)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since_s = time.monotonic()
        else:
            self.gc_pause_max_s = max(self.gc_pause_max_s, time.monotonic() - self._collecting_since_s)


def percentile(ascending: "array[float] | list[float]", percent: float) -> float:
    """Linear interpolation between the two nearest values; 0 of none."""
    if not ascending:
        return 0.0
    place = (len(ascending) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)

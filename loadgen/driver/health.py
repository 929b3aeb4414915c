"""Health of one worker: a heartbeat every 20 ms, CPU time, and control of the garbage collector.

Theory of operation of the collector. A full collection of a worker's heap takes tens of milliseconds, at any time. So
all objects that exist at the start are frozen, automatic collection is off during the run, and the timer collects the
youngest generation (about 0.1 ms) when no send is near, and in any case before it is so large that its collection takes
a millisecond. Older generations are not collected: the hot path creates no long-lived cycles, and a worker runs only
once.

Cause of a late beat: the CPU time of the thread and its wait for a core since the previous beat show whether the
program or the machine delayed it (see `denied_s`).
"""

import contextlib
import gc
import os
import time
from array import array

from loadgen.driver.pacer import Pacer

BEAT_S = 0.020
LATE_BEAT_S = 0.001
"""Beats late by less are not attributed to a cause."""
_QUIET_S = 0.002
_YOUNG_OBJECTS = 3_000
_TOO_MANY = 20_000


class Heartbeat:
    """Beats on an absolute grid and notes how late each beat was.

    Attributes:
        late_s: lateness of all beats that were more than `LATE_BEAT_S` late, summed; what one pause swallowed counts
            once. denied_s: part of it for which the thread had no core.
    """

    def __init__(self, pacer: Pacer) -> None:
        """Not beating yet."""
        self._pacer = pacer
        self._due_s = 0.0
        self._lags_s = array("d")
        self._cpu_at_start_s = 0.0
        self._started_s = 0.0
        self._collecting_since_s = 0.0
        self._core = CoreWait()
        self._ran_s = 0.0
        self._waited_s = 0.0
        self.gc_pause_max_s = 0.0
        self.late_s = 0.0
        self.denied_s = 0.0

    def start(self, at_s: float) -> None:
        """Start the beats, with the first at a given `time.monotonic()`.

        Effects: freezes the heap and turns automatic garbage collection off in this process.
        """
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.callbacks.append(self._note_collection)
        self._cpu_at_start_s, self._started_s = time.process_time(), time.monotonic()
        self._ran_s, self._waited_s = time.thread_time(), self._core.waited_s()
        self._due_s = at_s
        self._pacer.call_at(at_s, self._beat)

    def cpu_share(self) -> float:
        """CPU time of this process over wall time since `start`; 1 = one core busy all the time."""
        return self.cpu_s() / max(1e-9, time.monotonic() - self._started_s)

    def cpu_s(self) -> float:
        """CPU time of this process since `start`."""
        return time.process_time() - self._cpu_at_start_s

    def lags_s(self) -> "array[float]":
        """How late each beat was [s], float64 [beats]. Beats that a long pause skipped count with their own lag."""
        return self._lags_s

    def stop(self) -> None:
        """Effects: garbage collection is automatic again."""
        gc.callbacks.remove(self._note_collection)
        gc.enable()
        gc.unfreeze()
        self._core.close()

    def _beat(self) -> None:
        now_s = time.monotonic()
        self._note_late(now_s - self._due_s)
        while self._due_s <= now_s:
            self._lags_s.append(now_s - self._due_s)
            self._due_s += BEAT_S
        self._pacer.call_at(self._due_s, self._beat)
        young = gc.get_count()[0]
        if young > _TOO_MANY or (young > _YOUNG_OBJECTS and self._pacer.next_s - now_s > _QUIET_S):
            gc.collect(0)

    def _note_late(self, lag_s: float) -> None:
        """Count a late beat, and how much of it the thread spent without a core."""
        ran_s, waited_s = time.thread_time(), self._core.waited_s()
        if lag_s > LATE_BEAT_S:
            self.late_s += lag_s
            self.denied_s += denied_s(lag_s, ran_s=ran_s - self._ran_s, waited_s=waited_s - self._waited_s)
        self._ran_s, self._waited_s = ran_s, waited_s

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since_s = time.monotonic()
        else:
            self.gc_pause_max_s = max(self.gc_pause_max_s, time.monotonic() - self._collecting_since_s)


def denied_s(lag_s: float, *, ran_s: float, waited_s: float) -> float:
    """Part of a beat's lateness that the thread did not cause itself [s].

    The time in which it did not run, for any reason (the host of a virtual machine, a quota, swapped memory), or its
    wait for a core, if the kernel reports it and it is longer.

    Args:
        ran_s, waited_s: its CPU time, and its time in the queue for a core, since the previous beat [s].
    """
    return min(lag_s, max(waited_s, lag_s - ran_s))


def percentile(ascending: "array[float] | list[float]", percent: float) -> float:
    """Linear interpolation between the two nearest values; 0 of none."""
    if not ascending:
        return 0.0
    place = (len(ascending) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


# How long a thread was ready to run and had no core, as Linux's scheduler counts it.

_NS = 1e-9
_MOST_BYTES = 100


class CoreWait:
    """The count of the thread that makes this; always 0 where the system keeps none. Made, read and closed by it."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_s(self) -> float:
        """Time since the thread's start [s]."""
        if self._fd is None:
            return 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(os.pread(self._fd, _MOST_BYTES, 0).split()[1]) * _NS
        return 0.0

    def close(self) -> None:
        """Effects: closes the file; the count is 0 from now on."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

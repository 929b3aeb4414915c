"""Releases the OpenMP workers of a thread that ran a parallel region.

libgomp counts the workers of all threads of a process. If there are more than CPUs, its workers sleep immediately
instead of spinning for the next piece of work, although most of them are idle: an engine of two threads on two CPUs,
whose model was loaded by another thread with two, took 1.6 times as long for a torch step, mostly for wake-ups.
"""

import ctypes

_PAUSE_HARD = 2


def end_idle_workers() -> bool:
    """End the OpenMP workers of the calling thread; new ones start on demand.

    Returns: False, without effect, if OpenMP's library lacks the function.
    Effects: ends threads of OpenMP.
    Source: `omp_pause_resource_all` of OpenMP 5.0.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    return pause is not None and pause(_PAUSE_HARD) == 0

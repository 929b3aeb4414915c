"""OpenMP's workers, which belong to the thread that had something computed by several.

libgomp counts the workers of all threads of a process. If they are more than the CPUs, its workers go to sleep at once
instead of looking out for the next piece of work for a moment, although most of them have nothing to do: an engine of
two threads on two CPUs, whose model was loaded by another thread with two, took 1.6 times as long for a step of
torch's, most of it to be woken up.
"""

import ctypes

_PAUSE_HARD = 2


def end_idle_workers() -> bool:
    """Let the workers of the calling thread end; it gets new ones when it needs some.

    Returns: False where OpenMP's library has no such function; nothing is changed then.
    Effects: ends threads of OpenMP.
    Source: `omp_pause_resource_all` of OpenMP 5.0.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    return pause is not None and pause(_PAUSE_HARD) == 0

"""Seconds since 1970 that never jump: time as this process began with it, however the machine's clock is set later."""

import time

_BEGAN = time.time() - time.monotonic()


def steady_s() -> float:
    """Now [s since 1970]. A machine that sleeps, or whose clock is set, makes it differ from `time.time()`."""
    return _BEGAN + time.monotonic()

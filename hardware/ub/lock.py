"""The lock of a UB segment: between processes and between threads, dropped by the kernel when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hardware.errors import UbBusyError

LOCK_TIMEOUT_S = 30.0
"""Long enough to wait for a creator that is touching tens of gigabytes."""

_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 5e-3


@contextmanager
def locked(fd: int, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds the exclusive lock of an open file.

    The file is reopened for each lock, because flock belongs to the open file: a descriptor shared by threads or
    inherited by a fork would let both of them in. Opening through /proc also works once the file has been unlinked.

    Args:
        fd: any descriptor of the file.
        name: what to call the file in a message.
        timeout_s: how long to wait for the present holder; a stopped process holds its lock for ever.
    Raises: UbBusyError if the lock was not given in time.
    Effects: other processes and threads wait.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        _acquire(own, name, timeout_s)
        yield
    finally:
        os.close(own)  # closing releases the lock


def _acquire(fd: int, name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise UbBusyError(
                    f"the lock of {name} was held by others for {timeout_s:g} s; look for a stopped process"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)

"""How long a thread was ready to run and had no core, as Linux's scheduler counts it."""

import contextlib
import os

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

"""Linux's timerfd, which Python has only from 3.13 on: a file descriptor that becomes readable at a given moment.

An event loop that sleeps in epoll wakes within some 0.1 ms of it, while uvloop's own timers go in whole milliseconds.
"""

import contextlib
import ctypes
import os
from typing import Self

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFd:
    """One timer on the clock of `time.monotonic()`."""

    def __init__(self, library: ctypes.CDLL, fd: int) -> None:
        """Use `create`."""
        self._library = library
        self._spec = _Itimerspec()
        self.fd = fd

    @classmethod
    def create(cls, symbol: str = "timerfd_create") -> Self | None:
        """A timer, or None where the system has none, by the name of its call."""
        try:
            library = ctypes.CDLL(None, use_errno=True)
            fd = getattr(library, symbol)(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError, TypeError):
            return None
        return cls(library, fd) if fd >= 0 else None

    def set(self, when_s: float) -> None:
        """Fire at a moment of `time.monotonic()`, at once if it has passed; replaces an earlier setting.

        Raises: OSError.
        """
        at_ns = max(1, int(when_s * _NS))  # 0 would disarm it
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(at_ns, _NS)
        if self._library.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def clear(self) -> None:
        """Take the firing note, so that the descriptor is not readable any more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

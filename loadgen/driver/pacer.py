"""Wakes at absolute times, to a fraction of a millisecond.

Absolute: a late wake-up does not delay later ones, so errors never accumulate. The times are those of
`time.monotonic()`; an event loop's own time is avoided, since uvloop caches it and rounds it to milliseconds.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import time
from collections.abc import Callable
from typing import Self

Callback = Callable[[], None]


class Pacer:
    """Alarm clock of one event loop."""

    def __init__(self, *, precise: bool = True) -> None:
        """Belongs to the running loop.

        Args:
            precise: use the system's timerfd if there is one; otherwise the loop's own timers (1 ms with uvloop).
        """
        self._loop = asyncio.get_running_loop()
        self._alarms: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._armed_s = float("inf")
        self._handle: asyncio.TimerHandle | None = None
        self._timer = TimerFd.create() if precise else None
        if self._timer is not None:
            self._loop.add_reader(self._timer.fd, self._fire)

    @property
    def next_s(self) -> float:
        """The earliest scheduled moment; infinity if there is none."""
        return self._alarms[0][0] if self._alarms else float("inf")

    def call_at(self, when_s: float, callback: Callback) -> None:
        """Call a function at `when_s` or just after, never before; equal moments in the order of asking."""
        heapq.heappush(self._alarms, (when_s, next(self._order), callback))
        if when_s < self._armed_s:
            self._arm(when_s)

    async def sleep_until(self, when_s: float) -> None:
        """Wait for a moment; returns at once if it has passed."""
        if time.monotonic() >= when_s:
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        self.call_at(when_s, lambda: None if woken.done() else woken.set_result(None))
        await woken

    def close(self) -> None:
        """Cancel all scheduled calls."""
        self._alarms.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()
            self._timer = None

    def _arm(self, when_s: float) -> None:
        self._armed_s = when_s
        if self._timer is not None:
            self._timer.set(when_s)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, when_s - time.monotonic()), self._fire)

    def _fire(self) -> None:
        """Run due calls. The loop timer may fire early (coarse clock); then no call is due and it is set again."""
        if self._timer is not None:
            self._timer.clear()
        self._armed_s = float("inf")
        while self._alarms and self._alarms[0][0] <= time.monotonic():
            _, _, callback = heapq.heappop(self._alarms)
            callback()
        if self._alarms and self._alarms[0][0] < self._armed_s:
            self._arm(self._alarms[0][0])


# Linux's timerfd, which Python has only from 3.13 on: a file descriptor that becomes readable at a given moment.
#
# An event loop that sleeps in epoll wakes within some 0.1 ms of it, while uvloop's own timers go in whole milliseconds.

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

"""Wakes at absolute times, to a fraction of a millisecond.

Absolute: a late wake-up does not delay later ones, so errors never accumulate. The times are those of
`time.monotonic()`; an event loop's own time is avoided, since uvloop caches it and rounds it to milliseconds.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from loadgen.driver.timerfd import TimerFd

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

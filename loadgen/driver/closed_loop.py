"""Closed loop: a fixed number of users, each of whom starts the next conversation when the previous one has ended."""

import time
from collections import deque
from collections.abc import Callable

from loadgen.driver.open_loop import StartSession
from loadgen.driver.pacer import Pacer
from loadgen.driver.supply import Stock

_LEAST_RESERVE = 4
_MOST_RESERVE = 4096


class ClosedLoop:
    """Gives a job to each free slot.

    The intended time is when the slot became free. If no job is available at that moment it is when one arrives: the
    load
    is then lower than requested, as `starved_s` reports, but no latency is measured wrongly.

    Attributes:
        taken: jobs taken from the stock. depth: jobs to hold ahead. It is small at first, so that the last jobs of a
            run are divided evenly, and doubles each time a slot had to wait.
        starved_s: time for which a slot was free and no job was available, summed over slots.
    """

    def __init__(
        self,
        stock: Stock,
        pacer: Pacer,
        start: StartSession,
        t0: float,
        openings_s: list[float],
        on_hungry: Callable[[], None],
    ) -> None:
        """Idle until `begin`.

        Args:
            start: starts a conversation; gets the job and when it was intended [run time].
            openings_s: when each slot opens [run time].
            on_hungry: called when a slot has to wait and `depth` has therefore grown.
        """
        self._on_hungry = on_hungry
        self._stock = stock
        self._pacer = pacer
        self._start = start
        self._t0 = t0
        self._openings_s = openings_s
        self._hungry: deque[float] = deque()
        self._over = False
        self._reserve = _reserve(len(openings_s))
        self.taken = 0
        self.starved_s = 0.0

    @property
    def depth(self) -> int:
        """Jobs needed immediately by slots that have not started, plus a reserve."""
        return max(0, len(self._openings_s) - self.taken) + self._reserve

    @property
    def pending(self) -> bool:
        """Whether a job was taken from the stock and not started; never so here."""
        return False

    def begin(self) -> None:
        """Open the slots, each at its time."""
        self._stock.on_ready = self._came
        for opening_s in self._openings_s:
            self.freed(opening_s)

    def end(self) -> None:
        """Start no further conversations."""
        self._over = True

    def freed(self, free_s: float) -> None:
        """A slot is free since (or, in the future, from) then [run time]."""
        if self._over:
            return
        if free_s > time.monotonic() - self._t0:
            self._pacer.call_at(self._t0 + free_s, lambda: self.freed(free_s))
            return
        rendered = self._stock.take()
        if rendered is not None:
            self.taken += 1
            self._start(rendered, free_s)
        elif not self._stock.complete_and_empty:
            self._hungry.append(free_s)
            self._reserve = min(_MOST_RESERVE, self._reserve * 2)
            self._on_hungry()

    def _came(self) -> None:
        """A job has arrived; a slot may be waiting for it."""
        while self._hungry and not self._over:
            rendered = self._stock.take()
            if rendered is None:
                return
            since_s, now_s = self._hungry.popleft(), time.monotonic() - self._t0
            self.taken += 1
            self.starved_s += now_s - since_s
            self._start(rendered, now_s)


def first_depth(slots: int) -> int:
    """Jobs that a worker with this many slots holds before the start."""
    return slots + _reserve(slots)


def _reserve(slots: int) -> int:
    return max(_LEAST_RESERVE, slots // 4)

"""Open and closed loop: when conversations start."""

import time
from collections import deque
from collections.abc import Callable

from loadgen.driver.pacer import Pacer
from loadgen.driver.supply import RenderedTurn, Stock

# Open loop: the schedule alone determines when a conversation starts.

OPEN_DEPTH = 4096
"""Jobs that a worker holds ahead of their time."""

StartSession = Callable[[RenderedTurn, float], None]


class OpenLoop:
    """Takes jobs from the stock in their order, which is that of `due_s`, and starts each at its time.

    A request that reaches this worker after its time is sent immediately, and is late by the generator's fault:
    `intended` stays.

    Attributes:
        taken: jobs taken from the stock. depth: jobs to hold ahead. starved_s: time for which a job was due and had not
            arrived.
    """

    def __init__(self, stock: Stock, pacer: Pacer, start: StartSession, t0: float, duration_s: float | None) -> None:
        """Idle until `begin`.

        Args:
            start: starts a conversation; gets the job and when it was intended [run time].
        """
        self._stock = stock
        self._pacer = pacer
        self._start = start
        self._t0 = t0
        self._end_s = float("inf") if duration_s is None else duration_s
        self._next: RenderedTurn | None = None
        self._starved_until_s = 0.0
        self._was_empty = False
        self._over = False
        self.taken = 0
        self.depth = OPEN_DEPTH
        self.starved_s = 0.0

    @property
    def pending(self) -> bool:
        """Whether a job has been taken from the stock that is not due yet."""
        return self._next is not None

    def begin(self) -> None:
        """Take the first job, and every later one as it arrives."""
        self._stock.on_ready = self._pump
        self._pump()

    def end(self) -> None:
        """Start no further conversations."""
        self._over = True
        self._next = None

    def freed(self, free_s: float) -> None:
        """A conversation ended; no effect in an open loop."""

    def _pump(self) -> None:
        """Start all that is due, then set the alarm for the next one."""
        while not self._over and self._next is None:
            rendered = self._stock.take()
            if rendered is None:
                self._was_empty = True
                return
            self.taken += 1
            due_s = rendered.job.due_s or 0.0
            if due_s >= self._end_s:
                continue
            self._next = rendered
            now_s = time.monotonic() - self._t0
            if now_s < due_s:
                self._was_empty = False
                self._pacer.call_at(self._t0 + due_s, self._due)
                return
            self._note_starved(due_s, now_s)
            self._was_empty = False
            self._send()

    def _due(self) -> None:
        self._send()
        self._pump()

    def _note_starved(self, due_s: float, now_s: float) -> None:
        """A job was taken after its time: count the wait if the stock was empty. Overlapping waits count once."""
        if self._was_empty:
            self.starved_s += max(0.0, now_s - max(due_s, self._starved_until_s))
            self._starved_until_s = now_s

    def _send(self) -> None:
        if self._next is not None:
            rendered, self._next = self._next, None
            self._start(rendered, rendered.job.due_s or 0.0)


# Closed loop: a fixed number of users, each of whom starts the next conversation when the previous one has ended.

_LEAST_RESERVE = 4
_MOST_RESERVE = 4096


class ClosedLoop:
    """Gives a job to each free slot.

    The intended time is when the slot became free. If no job is available at that moment it is when one arrives: the
    load is then lower than requested, as `starved_s` reports, but no latency is measured wrongly.

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
        """Jobs to keep ready: one per slot that has not started, plus a reserve."""
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

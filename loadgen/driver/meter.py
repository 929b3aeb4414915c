"""Merges the workers' ticks into the live picture; pure, given the time."""

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field

from loadgen.driver.health import percentile
from loadgen.driver.messages import Tick
from loadgen.driver.progress import WINDOW_S, Progress
from loadgen.record import RequestOutcome

MOST_SORTED = 5_000
"""Limit of values that are sorted, since this runs ten times a second: of more values only every n-th is used, evenly
over the window."""


@dataclass(slots=True)
class _Sums:
    """Sums over ticks."""

    sent: int = 0
    finished: int = 0
    tokens: int = 0
    ttft_sum_s: float = 0.0
    ttft_count: int = 0
    tpot_sum_s: float = 0.0
    tpot_count: int = 0

    def add(self, tick: Tick, sign: int = 1) -> None:
        """Count a tick in, or out again."""
        self.sent += sign * tick.sent
        self.finished += sign * sum(tick.outcomes.values())
        self.tokens += sign * tick.tokens
        self.ttft_sum_s += sign * tick.ttft_sum_s
        self.ttft_count += sign * tick.ttft_count
        self.tpot_sum_s += sign * tick.tpot_sum_s
        self.tpot_count += sign * tick.tpot_count


@dataclass(slots=True)
class Meter:
    """Counts since the start, and a window of recent ticks."""

    _total: _Sums = field(default_factory=_Sums)
    _recent: _Sums = field(default_factory=_Sums)
    _window: deque[tuple[float, Tick]] = field(default_factory=deque)
    _outcomes: Counter[RequestOutcome] = field(default_factory=Counter)
    _now: dict[int, Tick] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Requests sent since the start."""
        return self._total.sent

    def add(self, worker: int, tick: Tick, now_s: float) -> None:
        self._total.add(tick)
        self._recent.add(tick)
        self._window.append((now_s, tick))
        self._outcomes.update(tick.outcomes)
        self._now[worker] = tick

    def forget(self, worker: int) -> None:
        """Remove a lost worker: its requests no longer count as running or waiting."""
        self._now.pop(worker, None)

    def progress(self, now_s: float, *, draining: bool, workers: int) -> Progress:
        """The picture at this run time."""
        while self._window and self._window[0][0] < now_s - WINDOW_S:
            self._recent.add(self._window.popleft()[1], -1)
        recent, span_s = self._recent, max(0.1, min(WINDOW_S, now_s))
        lateness_s = [late for _, tick in self._window for late in array("d", tick.lateness_s)]
        lateness_s = sorted(lateness_s[:: 1 + len(lateness_s) // MOST_SORTED])
        return Progress(
            now_s=now_s,
            sent=self._total.sent,
            finished=self._total.finished,
            running=sum(tick.running for tick in self._now.values()),
            waiting=sum(tick.waiting for tick in self._now.values()),
            outcomes=dict(self._outcomes),
            tokens=self._total.tokens,
            tokens_per_s=recent.tokens / span_s,
            sent_per_s=recent.sent / span_s,
            finished_per_s=recent.finished / span_s,
            ttft_s=recent.ttft_sum_s / recent.ttft_count if recent.ttft_count else None,
            tpot_s=recent.tpot_sum_s / recent.tpot_count if recent.tpot_count else None,
            lateness_p99_s=percentile(lateness_s, 99) if lateness_s else None,
            draining=draining,
            workers=workers,
        )

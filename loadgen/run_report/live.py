"""Live view of a run: two changing lines on a terminal, otherwise a plain line every ten seconds.

Takes the driver's `Progress`, whose own clock decides when a plain line is due.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.driver.progress import Progress
from loadgen.progress_bar import PLAIN_EVERY_S
from loadgen.report import numbers
from loadgen.run_report.names import outcome_title

_BAR_WIDTH = 24


class LiveProgress:
    """Shows progress until it is closed; a context manager that always restores the terminal."""

    def __init__(
        self,
        console: Console,
        *,
        total: Callable[[], int | None] = lambda: None,
        duration_s: float | None = None,
        label: str = "",
        quiet: bool = False,
    ) -> None:
        """Prepare; without output yet.

        Args:
            total: requests planned, as far as is known by now. duration_s: how long requests are sent. Both None if the
                end is not known.
            label: distinguishes this run from others of a sweep.
            quiet: show no output.
        """
        self._console = console
        self._total = total
        self._duration_s = duration_s
        self._label = label
        self._quiet = quiet
        self._next_plain_s = PLAIN_EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Show the run's present state.

        Effects: writes to the console: at once on a terminal, else when ten seconds of run time have passed.
        """
        if self._quiet:
            return
        if self._live:
            head = f"{self._label}  " if self._label else ""
            bar = f"{head}{bar_of(self.done_share(progress))} {load_line(progress, self._total(), self._duration_s)}"
            style = "red" if progress.failed else "green"
            self._live.update(Text(bar).append(f"\n{answer_line(progress)}", style=style), refresh=True)
        elif progress.now_s >= self._next_plain_s:
            self._next_plain_s = (progress.now_s // PLAIN_EVERY_S + 1) * PLAIN_EVERY_S
            head = f"{self._label}: " if self._label else ""
            text = f"{head}{load_line(progress, self._total(), self._duration_s)}; {answer_line(progress)}"
            self._console.print(Text(text), soft_wrap=True)

    def done_share(self, progress: Progress) -> float | None:
        """How much of the run is over, by whichever of count and time is further; None if the end is unknown."""
        shares = []
        if total := self._total():
            shares.append(progress.finished / total)
        if self._duration_s:
            shares.append(progress.now_s / self._duration_s)
        return min(1.0, max(0.0, *shares)) if shares else None


def load_line(progress: Progress, total: int | None, duration_s: float | None) -> str:
    """Line on the generator: time, requests, rate, lateness."""
    if progress.now_s < 0:
        return "starting"
    time = f"{progress.now_s:.0f} s" if duration_s is None else f"{progress.now_s:.0f} of {duration_s:.0f} s"
    finished = f"{progress.finished:,}" if total is None else f"{progress.finished:,} of {total:,}"
    parts = [time, f"{finished} done", f"{progress.running:,} open"]
    if progress.waiting:
        parts.append(f"{progress.waiting:,} waiting for a slot")
    parts.append("draining" if progress.draining else f"{numbers.significant(progress.sent_per_s)} sent/s")
    if progress.lateness_p99_s is not None:
        parts.append(f"late {numbers.duration(progress.lateness_p99_s)} (p99)")
    return ", ".join(parts)


def answer_line(progress: Progress) -> str:
    """Line on the server: latencies, tokens, failures."""
    parts = [
        f"TTFT {numbers.duration(progress.ttft_s)}",
        f"TPOT {numbers.duration(progress.tpot_s)}",
        f"{numbers.significant(progress.tokens_per_s)} tokens/s",
        f"{numbers.significant(progress.finished_per_s)} finished/s",
    ]
    failed = progress.failed
    if failed:
        kinds = ", ".join(f"{number:,} {outcome_title(outcome)}" for outcome, number in failed.items())
        parts.append(f"{sum(failed.values()):,} failed ({kinds})")
    return ", ".join(parts)


def bar_of(share: float | None) -> str:
    """A bar of characters; without a known end only its frame."""
    filled = round((share or 0.0) * _BAR_WIDTH)
    return f"[{'━' * filled}{'·' * (_BAR_WIDTH - filled)}]"

"""Progress of a simulation, on stderr: virtual time, requests, and how many times faster than real time it runs."""

import time
from types import TracebackType
from typing import Self

from loadgen.progress_bar import ProgressBar

_EVERY_S = 0.2


class SimulationProgress:
    """A bar over the requests that have arrived, or over virtual time if their number is unknown.

    Args:
        count: total requests; None = unknown. duration_s: last arrival [s]; None = unknown.
        supernodes: number of reporting supernodes.
        quiet: show no bar.
    """

    def __init__(self, count: int | None, duration_s: float | None, supernodes: int, *, quiet: bool) -> None:
        self._count = count
        self._end_s = duration_s
        self._times = [0.0] * supernodes
        self._arrived = [0] * supernodes
        total = count if count is not None else duration_s
        self._bar = ProgressBar("simulating", total, quiet=quiet)
        self._begun = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def tell(self, supernode: int, at_s: float, arrived: int) -> None:
        """Update the progress of one supernode."""
        self._times[supernode] = at_s
        self._arrived[supernode] = arrived
        now = time.monotonic()
        if now - self._shown < _EVERY_S:
            return
        self._shown = now
        virtual = sum(self._times) / len(self._times)
        total = sum(self._arrived)
        speed = sum(self._times) / max(1e-9, now - self._begun)
        text = f"{virtual:,.0f} s virtual, {total:,} requests, {speed:,.0f} x real time"
        self._bar.update(total if self._count is not None else virtual, text)

"""What each side says of each request, and how far apart they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MEDIAN_LIMIT = 0.05
TAIL_LIMIT = 0.15
_LIMITS = {"p50": MEDIAN_LIMIT, "p99": TAIL_LIMIT}
_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "p50": lambda values: float(np.percentile(values, 50)),
    "p90": lambda values: float(np.percentile(values, 90)),
    "p99": lambda values: float(np.percentile(values, 99)),
    "mean": lambda values: float(values.mean()),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One request, in virtual seconds from its arrival."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One statistic of both sides. `limit`: how far the ratio may be from 1; None = it informs."""

    metric: str
    statistic: str
    live_s: float
    virtual_s: float
    limit: float | None

    @property
    def ratio(self) -> float:
        """Live over virtual."""
        return self.live_s / self.virtual_s

    @property
    def agrees(self) -> bool:
        """Whether the two are as close as they should be."""
        return self.limit is None or abs(self.ratio - 1.0) <= self.limit

    def line(self) -> str:
        """The row of a table, in milliseconds."""
        said = "" if self.limit is None else f"  within {self.limit:.0%}: {'yes' if self.agrees else 'NO'}"
        return (
            f"  {self.metric:<5}{self.statistic:<5}{self.live_s * 1e3:>10.1f}{self.virtual_s * 1e3:>10.1f}"
            f"{self.ratio:>8.3f}{said}"
        )


def compare(live: Sequence[Row], virtual: Sequence[Row]) -> list[Compared]:
    """Every statistic of every metric; TPOT of answers of more than one token.

    Raises: ValueError if the two are not of the same requests.
    """
    if [one.output_tokens for one in live] != [one.output_tokens for one in virtual]:
        raise ValueError("the two sides answered different requests")
    found = []
    for metric in ("ttft", "tpot", "e2e"):
        mine, theirs = _values(live, metric), _values(virtual, metric)
        for name, statistic in _STATISTICS.items():
            limit = _LIMITS.get(name) if metric != "e2e" else None
            found.append(Compared(metric.upper(), name, statistic(mine), statistic(theirs), limit))
    return found


def _values(rows: Sequence[Row], metric: str) -> np.ndarray:
    kept = [one for one in rows if metric != "tpot" or one.output_tokens > 1]
    return np.array([getattr(one, f"{metric}_s") for one in kept])

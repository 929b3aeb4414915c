"""Results of each side per request, and their differences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.conditions import Figure

LIMITS = {50: 5.0, 99: 15.0}
"""Percentile -> how far live may be from virtual [%]."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request, in virtual seconds from its arrival."""

    ttft_s: float
    tpot_s: float
    output_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, first_s: float, last_s: float, tokens: int, cached: int) -> "Row":
        """A request with its first and last token at these moments."""
        return cls(first_s, (last_s - first_s) / (tokens - 1) if tokens > 1 else 0.0, tokens, cached)


def compare(live: Sequence[Row], virtual: Sequence[Row]) -> list[Figure]:
    """Percentiles of TTFT and TPOT on both sides and their distance; TPOT of responses of more than one token."""
    if [one.output_tokens for one in live] != [one.output_tokens for one in virtual]:
        raise ValueError("the two sides answered different requests")
    figures = []
    for metric in ("ttft", "tpot"):
        for percent, limit in LIMITS.items():
            mine, theirs = (float(np.percentile(_values(side, metric), percent)) for side in (live, virtual))
            name = f"{metric.upper()} p{percent}"
            figures.append(Figure(f"{name}: live", "ms", (mine * 1e3,)))
            figures.append(Figure(f"{name}: live / virtual", "", (mine / theirs,)))
            figures.append(Figure(f"{name}: distance", "%", (100 * abs(mine / theirs - 1),), goal=limit))
    cached = [sum(row.cached_tokens for row in rows) for rows in (live, virtual)]
    return [*figures, Figure("cached tokens: live / virtual", "", (cached[0] / max(1, cached[1]),))]


def _values(rows: Sequence[Row], metric: str) -> np.ndarray:
    kept = [one for one in rows if metric != "tpot" or one.output_tokens > 1]
    return np.array([getattr(one, f"{metric}_s") for one in kept])

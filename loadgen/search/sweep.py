"""The values of a sweep: the given ones, or a geometric sequence between an idle and a full server.

Two short runs measure the ends. One request at a time gives the idle server's latency and rate; all at once gives the
largest throughput. By Little's law their product is the concurrency above which requests must wait.
"""

import math
from collections.abc import Sequence

from loadgen.errors import UsageError

BEYOND_FULL = 1.15
"""The last rate is a little above that of the full server, so that the curve shows its bend."""
BEYOND_KNEE = 4.0
"""The last concurrency is so many times the one from which on requests must wait."""


def explicit(values: Sequence[float], *, whole: bool = False) -> list[float]:
    """Values given by a user, ascending, without duplicates.

    Args:
        whole: concurrencies.
    Raises: UsageError for values that are not positive and finite, or not whole where they must be.
    """
    if not values:
        raise UsageError("--sweep-values is empty; write e.g. 1,2,4,8")
    for value in values:
        if not 0 < value < math.inf:
            raise UsageError(f"--sweep-values: {value:g} is not a positive number")
        if whole and value != round(value):
            raise UsageError(f"--sweep-values: a concurrency is a whole number, not {value:g}")
    return sorted({float(value) for value in values})


def rates(idle_per_s: float, full_per_s: float, points: int) -> list[float]:
    """Rates from one request at a time to a little beyond the full server.

    Args:
        idle_per_s: requests per second with one at a time. full_per_s: with all requests at once.
    Raises: UsageError if one of them is not positive (no request succeeded).
    """
    _measured(idle_per_s, full_per_s)
    return geometric(idle_per_s, max(full_per_s, idle_per_s) * BEYOND_FULL, points)


def concurrencies(idle_latency_s: float, full_per_s: float, points: int, largest: int | None = None) -> list[float]:
    """Concurrencies from 1 to well beyond the knee, as whole numbers; fewer than `points` if those are too close.

    Args:
        idle_latency_s: mean duration of a request alone. largest: cap.
    Raises: UsageError as `rates`.
    """
    _measured(idle_latency_s, full_per_s)
    knee = max(1.0, full_per_s * idle_latency_s)
    high = min(BEYOND_KNEE * knee, math.inf if largest is None else max(1, largest))
    return sorted({float(round(value)) for value in geometric(1.0, max(high, 2.0) if largest != 1 else 1.0, points)})


def geometric(low: float, high: float, points: int) -> list[float]:
    """`points` values from `low` to `high` with equal ratios, to three digits, without doubles."""
    if points <= 1 or high <= low:
        return [_three_digits(high)]
    ratio = (high / low) ** (1 / (points - 1))
    return sorted({_three_digits(low * ratio**step) for step in range(points)})


def _measured(*figures: float) -> None:
    """Refuse ends that were not measured.

    Raises: UsageError.
    """
    if not all(0 < figure < math.inf for figure in figures):
        raise UsageError("no request succeeded while the ends of the sweep were measured; give --sweep-values")


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")

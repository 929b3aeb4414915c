"""Ratios of two samples with 95 % intervals; pure, and without a statistics library.

Two ways, for two kinds of data:

    repetitions of a run     Welch's t interval on logarithms: each repetition is one independent value
    requests of single runs  bootstrap over blocks of neighbouring requests: requests that queued behind the same burst
                             are no independent values, so single ones must not be drawn

The second one cannot see what differs from run to run.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.definitions import BY_NAME
from loadgen.metrics.distribution import student_quantile
from loadgen.record import SUCCESSES, RequestRecord

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats | np.floating]
"""Maps `[..., values]`, at least one and none NaN, to `[...]`."""

CONFIDENCE = 0.95
_MOST_RESAMPLES, _FEWEST_RESAMPLES = 2000, 300
_WORK = 20_000_000
"""Values drawn in one bootstrap at most: about a second."""
_AT_ONCE = 500_000
"""Values of each side that are drawn and evaluated together: some MB, and few enough calls of NumPy."""


def welch_ratio(baseline: Sequence[float], other: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Ratio of geometric means other / baseline, and its 95 % interval.

    Args:
        baseline, other: one positive value per repetition.
    Returns: the interval is None if a side has fewer than two values; it has no width if no side varies.
    """
    logs = [np.log(np.asarray(side, dtype=float)) for side in (baseline, other)]
    difference = float(logs[1].mean() - logs[0].mean())
    ratio = math.exp(difference)
    if min(len(side) for side in logs) < 2:
        return ratio, None
    parts = [float(side.var(ddof=1)) / len(side) for side in logs]
    error = math.sqrt(sum(parts))
    if error == 0:
        return ratio, (ratio, ratio)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    half = student_quantile(0.5 + CONFIDENCE / 2, freedom) * error
    return ratio, (math.exp(difference - half), math.exp(difference + half))


def bootstrap_ratio(
    baseline: Floats, other: Floats, statistic: Statistic, rng: np.random.Generator, *, paired: bool
) -> tuple[float, tuple[float, float] | None]:
    """statistic(other) / statistic(baseline) over requests in the order of their sending, and its 95 % interval.

    Args:
        baseline, other: one value per request; NaN for requests without one. Equally long if `paired`.
        paired: position i of both is the same request, so both are drawn together and what they share cancels.
    Returns: the interval is None if the statistic was zero or undefined in some draw.
    """
    ratio = float(_ratios(statistic, baseline[None], other[None])[0])
    size = max(len(baseline), len(other), 1)
    resamples = int(min(_MOST_RESAMPLES, max(_FEWEST_RESAMPLES, _WORK // size)))
    together = max(1, _AT_ONCE // size)
    found = []
    for begin in range(0, resamples, together):
        draws = min(together, resamples - begin)
        first = block_indices(len(baseline), draws, rng)
        second = first if paired else block_indices(len(other), draws, rng)
        found.append(_ratios(statistic, baseline[first], other[second]))
    ratios = np.concatenate(found)
    if not np.isfinite(ratios).all():
        return ratio, None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return ratio, (float(low), float(high))


def block_indices(size: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`[draws, size]`: indices of resamples of `size` values in blocks of about sqrt(size) neighbours, around the end.

    Source: Politis and Romano, A circular block-resampling procedure for stationary data, 1992.
    """
    length = max(1, round(math.sqrt(size)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    indices: NDArray[np.int64] = ((starts[..., None] + np.arange(length)) % size).reshape(draws, -1)[:, :size]
    return indices


def _ratios(statistic: Statistic, baseline: Floats, other: Floats) -> Floats:
    """statistic(other) / statistic(baseline) for each row; NaN if there is none."""
    below, above = _of_rows(statistic, baseline), _of_rows(statistic, other)
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)


def _of_rows(statistic: Statistic, rows: Floats) -> Floats:
    """The statistic of each row's values that exist; NaN if none does."""
    missing = np.isnan(rows)
    if not missing.any():
        return np.asarray(statistic(rows))
    known = (row[~gone] for row, gone in zip(rows, missing, strict=True))
    return np.array([statistic(values) if len(values) else np.nan for values in known])


# Values of single requests for the bootstrap, and which requests two runs have in common.

_COMMON_SHARE = 0.9
"""Runs of which fewer requests are the same plan are not compared request by request."""


def request_values(name: str, records: Sequence[RequestRecord]) -> Floats:
    """One value per request; NaN where the metric does not exist or the request did not succeed."""
    metric = BY_NAME[name]
    values = [list(metric.values(record)) if record.outcome in SUCCESSES else [] for record in records]
    return np.array([found[0] if found else np.nan for found in values], dtype=float)


def common_requests(baseline: Sequence[RequestRecord], other: Sequence[RequestRecord]) -> list[tuple[int, int]]:
    """Positions of requests that were planned equally in both runs; empty if those are not nearly all.

    The same seed gives the same plan; its requests then differ by the servers only.
    """
    places = {_plan(record): position for position, record in enumerate(other)}
    pairs = [(position, places[_plan(record)]) for position, record in enumerate(baseline) if _plan(record) in places]
    return pairs if len(pairs) >= _COMMON_SHARE * max(len(baseline), len(other)) else []


def _plan(record: RequestRecord) -> tuple[int, int, int | None, int | None]:
    return (record.index, record.turn, record.planned_input_tokens, record.planned_output_tokens)

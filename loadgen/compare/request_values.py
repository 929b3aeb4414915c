"""Values of single requests for the bootstrap, and which requests two runs have in common."""

from collections.abc import Sequence

import numpy as np

from loadgen.compare.statistics import Floats
from loadgen.metrics.definitions import BY_NAME
from loadgen.record import SUCCESSES, RequestRecord

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

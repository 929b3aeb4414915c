"""Latencies of requests, from columns: one array per metric, nan where a request has no such value.

TTFT is measured at the client: arrival to first token. TPOT is (finish - first token) / (output tokens - 1), so a
response of one token has none; counting it as 0 would make every percentile too good.
"""

import math
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.virtual.result import Outcome, RequestColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Figures of one metric; every one is nan if nothing was counted."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """One value per request, in order of arrival [s]; nan where there is none.

    Attributes:
        ttft_s: of every request that got a first token, finished or not.
        tpot_s: of finished requests with two tokens or more.
        e2e_s: of finished requests.
        finished, counted: which requests finished; which ended in any way (open ones do not count).
        one_token: finished requests that have no TPOT.
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    finished: Flags
    counted: Flags
    one_token: int


def latencies(requests: RequestColumns) -> Latencies:
    """Compute the latencies of every request; the columns are read in place."""
    arrival, first, finish = floats(requests.arrival_s), floats(requests.first_token_s), floats(requests.finish_s)
    gaps = ints(requests.output_tokens) - 1
    outcome = np.frombuffer(requests.outcome, dtype=np.int8)
    finished = outcome == Outcome.FINISHED
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(finished & (gaps > 0), (finish - first) / gaps, np.nan)
    return Latencies(
        ttft_s=first - arrival,
        tpot_s=tpot,
        e2e_s=np.where(finished, finish - arrival, np.nan),
        finished=finished,
        counted=outcome != Outcome.UNFINISHED,
        one_token=int(np.count_nonzero(finished & (gaps <= 0))),
    )


def distribution(values: Floats) -> LatencyFigures:
    """Mean and percentiles of the values that are not nan, with linear interpolation (numpy's default)."""
    present = values[~np.isnan(values)]
    if not len(present):
        return LatencyFigures(0, math.nan, math.nan, math.nan, math.nan, math.nan)
    p50, p90, p99 = (float(value) for value in np.percentile(present, PERCENTILES))
    return LatencyFigures(len(present), float(present.mean()), p50, p90, p99, float(present.max()))


def floats(column: "array[float]") -> Floats:
    """A column as an array, without a copy."""
    return np.frombuffer(column, dtype=np.float64)


def ints(column: "array[int]") -> Ints:
    """A column of type "q" as an array, without a copy."""
    return np.frombuffer(column, dtype=np.int64)


# Goodput and SLO attainment, counted as in `loadgen`, so that live and simulated runs can be compared.


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits on each request's latency [s]; None = no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput and attainment of the SLOs.

    Attributes:
        good: finished requests within every limit. counted: requests that ended, with or without success; requests
            still open when the simulation stopped are in neither.
        good_per_s: over the whole run.
        attainment: good / counted; ttft_attainment, tpot_attainment: for one limit alone; nan if nothing was counted.
        untestable: finished requests without a TPOT, which cannot miss its limit.
    """

    slo: Slo
    good: int
    counted: int
    good_per_s: float
    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    untestable: int


def good_requests(times: Latencies, slo: Slo) -> Flags:
    """Flags of the requests that finished within every limit.

    Args:
        slo: without limits, every finished request is good.
    """
    return _within_ttft(times, slo) & _within_tpot(times, slo)


def goodput(times: Latencies, slo: Slo, duration_s: float) -> Goodput:
    """Count the good requests.

    Args:
        duration_s: of the run [s]; 0 gives a rate of 0.
    """
    good = int(np.count_nonzero(good_requests(times, slo)))
    counted = int(np.count_nonzero(times.counted))

    def share(flags: Flags) -> float:
        return int(np.count_nonzero(flags)) / counted if counted else float("nan")

    return Goodput(
        slo=slo,
        good=good,
        counted=counted,
        good_per_s=good / duration_s if duration_s > 0 else 0.0,
        attainment=good / counted if counted else float("nan"),
        ttft_attainment=share(_within_ttft(times, slo)),
        tpot_attainment=share(_within_tpot(times, slo)),
        untestable=times.one_token if slo.tpot_s is not None else 0,
    )


def _within_ttft(times: Latencies, slo: Slo) -> Flags:
    return times.finished if slo.ttft_s is None else times.finished & (times.ttft_s <= slo.ttft_s)


def _within_tpot(times: Latencies, slo: Slo) -> Flags:
    if slo.tpot_s is None:
        return times.finished
    return times.finished & (np.isnan(times.tpot_s) | (times.tpot_s <= slo.tpot_s))

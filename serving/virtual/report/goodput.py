"""Goodput and SLO attainment, counted as in `loadgen`, so that live and simulated runs can be compared."""

from dataclasses import dataclass

import numpy as np

from serving.virtual.report.latencies import Flags, Latencies


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

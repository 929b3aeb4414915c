"""Differences of two simulations: figures, settings, decisions, and single requests if both runs had the same ones.

A simulation is exactly repeatable, and two runs of one trace have the same requests. So a difference is not due to
sampling and needs no confidence interval, unlike the measurements of `loadgen compare`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from serving.virtual.comparison.run_file import LatencyRead, RequestsRead, SimulatedRun
from serving.virtual.report.latencies import Floats

Better = Literal["more", "less", "neither"]
Unit = Literal["count", "per_s", "share", "s", "number"]


@dataclass(frozen=True, slots=True)
class SimulatedFigure:
    """One figure of both runs; None if a run has no such value. `better`: direction of improvement."""

    name: str
    unit: Unit
    better: Better
    baseline: float | None
    other: float | None

    @property
    def change(self) -> float | None:
        """Relative difference; for shares the difference itself, in points. None if a value is missing."""
        if self.baseline is None or self.other is None:
            return None
        if self.unit == "share":
            return self.other - self.baseline
        if self.baseline == 0:
            return 0.0 if self.other == 0 else None
        return self.other / self.baseline - 1


@dataclass(frozen=True, slots=True)
class PairedLatency:
    """One latency of the same requests in both runs.

    Attributes:
        pairs: requests with the latency in both runs. faster, slower: in the other run, by more than a thousandth.
        median_s, least_s, most_s: other minus baseline, over the pairs [s].
    """

    name: str
    pairs: int
    faster: int
    slower: int
    median_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class SimulationComparison:
    """All values of a comparison's reports.

    Attributes:
        settings: name, value of the baseline, value of the other run; only those that differ.
        paired: empty unless both documents have the same requests.
        warnings: reasons to doubt figures.
    """

    baseline: SimulatedRun
    other: SimulatedRun
    figures: list[SimulatedFigure]
    settings: list[tuple[str, str, str]]
    paired: list[PairedLatency]
    warnings: list[str]


_SAME = 1e-3
"""Relative difference up to which a request counts as equally fast."""


def compare_runs(baseline: SimulatedRun, other: SimulatedRun) -> SimulationComparison:
    """Compare a run with a baseline."""
    names = {**baseline.config, **other.config}
    settings = [
        (name, baseline.config.get(name, ""), other.config.get(name, ""))
        for name in names
        if baseline.config.get(name) != other.config.get(name)
    ]
    return SimulationComparison(
        baseline, other, _figures(baseline, other), settings, _paired(baseline.requests, other.requests),
        _warnings(baseline, other),
    )  # fmt: skip


def _figures(baseline: SimulatedRun, other: SimulatedRun) -> list[SimulatedFigure]:
    first, second = baseline.summary, other.summary
    goods = [one.goodput for one in (first, second)]
    rates, caches = (first.throughput, second.throughput), (first.cache, second.cache)

    def pair(name: str, unit: Unit, better: Better, left: float | None, right: float | None) -> SimulatedFigure:
        return SimulatedFigure(name, unit, better, left, right)

    found = [
        pair("requests finished", "count", "more", first.outcomes.get("finished"), second.outcomes.get("finished")),
        pair("goodput", "per_s", "more", *(good.good_per_s if good else None for good in goods)),
        pair("within the SLOs", "share", "more", *(good.attainment if good else None for good in goods)),
        pair("requests/s", "per_s", "more", *(rate.requests_per_s for rate in rates)),
        pair("prompt tokens/s", "per_s", "more", *(rate.input_tokens_per_s for rate in rates)),
        pair("output tokens/s", "per_s", "more", *(rate.output_tokens_per_s for rate in rates)),
        pair("output per NPU", "per_s", "more", *(rate.output_tokens_per_npu_s for rate in rates)),
        pair("cached prompt", "share", "more", *(cache.hit_share for cache in caches)),
        pair("from the pool", "share", "neither", *(cache.pulled_share for cache in caches)),
        pair("NPU-hours", "number", "less", first.npu_hours, second.npu_hours),
    ]
    for name in dict.fromkeys(pool.name for side in (first, second) for pool in side.pools):
        pools = [next((pool for pool in side.pools if pool.name == name), None) for side in (first, second)]
        found.append(pair(f"{name}: peak NPUs", "count", "less", *(one.peak_npus if one else None for one in pools)))
        found.append(pair(f"{name}: busy", "share", "neither", *(one.busy_share if one else None for one in pools)))
    for title, left, right in (
        ("TTFT", first.ttft_s, second.ttft_s),
        ("TPOT", first.tpot_s, second.tpot_s),
        ("end to end", first.e2e_s, second.e2e_s),
    ):
        found += [
            pair(f"{title} {part}", "s", "less", value, again)
            for (part, value), (_, again) in zip(_parts(left), _parts(right), strict=True)
        ]
    return [one for one in found if (one.baseline, one.other) != (None, None)]


def _parts(of: LatencyRead) -> list[tuple[str, float | None]]:
    return [("mean", of.mean), ("p50", of.p50), ("p90", of.p90), ("p99", of.p99), ("max", of.maximum)]


def _paired(baseline: RequestsRead | None, other: RequestsRead | None) -> list[PairedLatency]:
    """Differences request by request; empty unless both runs had the same requests."""
    if baseline is None or other is None or not _same_requests(baseline, other):
        return []
    found = []
    for name, left, right in zip(("TTFT", "TPOT", "end to end"), _latencies(baseline), _latencies(other), strict=True):
        known = ~np.isnan(left) & ~np.isnan(right)
        if not known.any():
            continue
        gained, before = (right - left)[known], left[known]
        found.append(
            PairedLatency(
                name, int(known.sum()), int((gained < -_SAME * before).sum()), int((gained > _SAME * before).sum()),
                float(np.median(gained)), float(gained.min()), float(gained.max()),
            )
        )  # fmt: skip
    return found


def _same_requests(baseline: RequestsRead, other: RequestsRead) -> bool:
    same = (baseline.arrival_s, baseline.prompt_tokens) == (other.arrival_s, other.prompt_tokens)
    return same and bool(baseline.arrival_s)


def _latencies(of: RequestsRead) -> tuple[Floats, Floats, Floats]:
    """TTFT, TPOT and end-to-end latency of each request [s]; nan where there is none."""
    arrival, gaps = np.array(of.arrival_s), np.array(of.output_tokens) - 1
    first, finish = (np.array(column, dtype=np.float64) for column in (of.first_token_s, of.finish_s))
    tpot = np.where(gaps > 0, (finish - first) / np.maximum(gaps, 1), np.nan)
    return first - arrival, tpot, finish - arrival


def _warnings(baseline: SimulatedRun, other: SimulatedRun) -> list[str]:
    found = []
    if baseline.workload != other.workload:
        found.append(f"Other loads: {baseline.workload} against {other.workload}.")
    if baseline.seed != other.seed:
        found.append(f"Other seeds, {baseline.seed} and {other.seed}: a part of each difference is chance.")
    if baseline.name != other.name:
        found.append(f"Other models: {baseline.name} against {other.name}.")
    for run in (baseline, other):
        ended = run.summary.outcomes.get("finished", 0)
        if ended < run.summary.requests:
            found.append(
                f"{run.path}: {run.summary.requests - ended:,} requests did not finish; latencies leave them out."
            )
    return found

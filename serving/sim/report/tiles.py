"""The main figures at the top of the page."""

from dataclasses import dataclass, field

from serving.sim.report import numbers
from serving.sim.report.goodput import Goodput, Slo
from serving.sim.report.latencies import Distribution
from serving.sim.report.summary import Summary


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its unit and what belongs to it in small print."""

    name: str
    figure: str
    unit: str = ""
    lines: list[str] = field(default_factory=list)


def tiles(summary: Summary) -> list[Tile]:
    """Tiles in the order of interest."""
    rates, cache = summary.throughput, summary.cache
    slo = summary.goodput.slo if summary.goodput else Slo()
    npus = sum(pool.peak_npus for pool in summary.pools)
    found = [
        _requests(summary),
        _latency("TTFT, median", summary.ttft_s, slo.ttft_s),
        _latency("TPOT, median", summary.tpot_s, slo.tpot_s),
        Tile(
            "Output", numbers.figure(rates.output_tokens_per_s), "tokens/s",
            [
                f"{numbers.figure(rates.output_tokens_per_npu_s)} per NPU of all pools",
                f"{numbers.figure(rates.input_tokens_per_s)} prompt tokens/s",
            ],
        ),
        Tile("Cached prompt tokens", numbers.share(cache.hit_share), "", _cache_lines(summary)),
        Tile("NPUs", numbers.count(npus), "at the peak", [f"{numbers.figure(summary.npu_hours)} NPU-hours"]),
    ]  # fmt: skip
    if summary.goodput:
        found.insert(1, _goodput(summary.goodput))
    if summary.faults:
        number = sum(fault.count for fault in summary.faults)
        lost = f"{numbers.share(summary.lost_npu_share)} of NPU time lost"
        found.append(Tile("Faults", numbers.count(number), "", [lost, f"{summary.retried:,} requests sent again"]))
    return found


def outcome_text(summary: Summary) -> str:
    """Requests that did not finish, by how they ended: "12 rejected, 3 failed"."""
    ends = [f"{number:,} {name}" for name, number in summary.outcomes.items() if number and name != "finished"]
    return ", ".join(ends) or "none rejected or failed"


def _requests(summary: Summary) -> Tile:
    return Tile(
        "Requests finished", numbers.count(summary.outcomes["finished"]), f"of {summary.requests:,}",
        [outcome_text(summary), f"{numbers.figure(summary.throughput.requests_per_s)} per second"],
    )  # fmt: skip


def _goodput(goodput: Goodput) -> Tile:
    limits = [
        f"{name} {numbers.duration(limit_s)}: {numbers.share(share)}"
        for name, limit_s, share in (
            ("TTFT", goodput.slo.ttft_s, goodput.ttft_attainment),
            ("TPOT", goodput.slo.tpot_s, goodput.tpot_attainment),
        )
        if limit_s is not None
    ]
    rate = f"{numbers.figure(goodput.good_per_s)} requests/s"
    return Tile("Within the SLOs", numbers.share(goodput.attainment), "", [rate, *limits])


def _latency(name: str, of: Distribution, limit_s: float | None) -> Tile:
    lines = [f"p90 {numbers.duration(of.p90)}", f"p99 {numbers.duration(of.p99)}"]
    if limit_s is not None:
        lines.append(f"SLO {numbers.duration(limit_s)}")
    return Tile(name, numbers.duration(of.p50), "", lines)


def _cache_lines(summary: Summary) -> list[str]:
    cache = summary.cache
    return [
        f"{numbers.share(cache.pulled_share)} from the KV-cache pool",
        f"{numbers.share(cache.pool_hit_share)} of {cache.pool_lookups_blocks:,} blocks asked for",
    ]

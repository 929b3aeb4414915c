"""The main figures at the top of the page."""

from loadgen.report import numbers
from loadgen.report.fragments import Html, tile
from serving.virtual.report.goodput import Goodput, Slo
from serving.virtual.report.latencies import LatencyFigures
from serving.virtual.report.summary import Summary


def summary_tiles(summary: Summary) -> list[Html]:
    """Tiles in the order of interest."""
    rates, cache = summary.throughput, summary.cache
    slo = summary.goodput.slo if summary.goodput else Slo()
    npus = sum(pool.peak_npus for pool in summary.pools)
    found = [
        _requests(summary),
        _latency("TTFT, median", summary.ttft_s, slo.ttft_s),
        _latency("TPOT, median", summary.tpot_s, slo.tpot_s),
        tile(
            "Output", numbers.significant(rates.output_tokens_per_s), "tokens/s",
            [
                f"{numbers.significant(rates.output_tokens_per_npu_s)} per NPU of all pools",
                f"{numbers.significant(rates.input_tokens_per_s)} prompt tokens/s",
            ],
        ),
        tile("Cached prompt tokens", numbers.share(cache.hit_share), "", _cache_lines(summary)),
        tile("NPUs", numbers.count(npus), "at the peak", [f"{numbers.significant(summary.npu_hours)} NPU-hours"]),
    ]  # fmt: skip
    if summary.goodput:
        found.insert(1, _goodput(summary.goodput))
    if summary.faults:
        number = sum(fault.count for fault in summary.faults)
        lost = f"{numbers.share(summary.lost_npu_share)} of NPU time lost"
        found.append(tile("Faults", numbers.count(number), "", [lost, f"{summary.retried:,} requests sent again"]))
    return found


def outcome_text(summary: Summary) -> str:
    """Requests that did not finish, by how they ended: "12 rejected, 3 failed"."""
    ends = [f"{number:,} {name}" for name, number in summary.outcomes.items() if number and name != "finished"]
    return ", ".join(ends) or "none rejected or failed"


def _requests(summary: Summary) -> Html:
    return tile(
        "Requests finished", numbers.count(summary.outcomes["finished"]), f"of {summary.requests:,}",
        [outcome_text(summary), f"{numbers.significant(summary.throughput.requests_per_s)} per second"],
    )  # fmt: skip


def _goodput(goodput: Goodput) -> Html:
    limits = [
        f"{name} {numbers.limit(limit_s)}: {numbers.share(share)}"
        for name, limit_s, share in (
            ("TTFT", goodput.slo.ttft_s, goodput.ttft_attainment),
            ("TPOT", goodput.slo.tpot_s, goodput.tpot_attainment),
        )
        if limit_s is not None
    ]
    rate = f"{numbers.significant(goodput.good_per_s)} requests/s"
    return tile("Within the SLOs", numbers.share(goodput.attainment), "", [rate, *limits])


def _latency(name: str, of: LatencyFigures, limit_s: float | None) -> Html:
    figure, _, unit = numbers.duration(of.p50).partition(" ")
    lines = [f"p90 {numbers.duration(of.p90)}", f"p99 {numbers.duration(of.p99)}"]
    if limit_s is not None:
        lines.append(f"SLO {numbers.limit(limit_s)}")
    return tile(name, figure, unit, lines)


def _cache_lines(summary: Summary) -> list[str]:
    cache = summary.cache
    return [
        f"{numbers.share(cache.pulled_share)} from the KV-cache pool",
        f"{numbers.share(cache.pool_hit_share)} of {cache.pool_lookups_blocks:,} blocks asked for",
    ]

"""The summary in a terminal. Its text depends only on the result; the speed, in real time, is printed separately."""

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from loadgen.report import numbers
from loadgen.report.job_table import incomplete_lines, job_table, miss_table
from loadgen.report.table import Table, select, terminal_table
from serving import compiled
from serving.virtual.report import simulation_tables
from serving.virtual.report.simulation_tables import outcome_text
from serving.virtual.report.summary import Summary
from serving.virtual.result import ACCURACY, ENGINE, SimResult

_POOL_COLUMNS = (
    "pool", "peak NPUs", "NPU-hours", "busy", "prompt tokens/s", "output tokens/s", "tokens/s per NPU", "peak batch",
    "peak KV",
)  # fmt: skip
"""Columns that fit into a terminal."""
_LONG_S = 10.0
"""Wall-clock time from which a hint on faster runs is printed [s]."""
_FAILURES = ("fail", "reject")
"""Kinds of decisions that end a request."""


def print_summary(result: SimResult, summary: Summary, console: Console) -> None:
    """Print the configuration and the figures of a run."""
    console.print(Text(f"{result.name}: {result.workload}", style="bold"))
    _line(console, "virtual time", f"{numbers.clock(summary.duration_s)}, seed {result.seed}{_supernodes(result)}")
    finished = f"{summary.outcomes['finished']:,} of {summary.requests:,} finished, {outcome_text(summary)}"
    _line(console, "requests", f"{finished}{f', {summary.retried:,} sent again' if summary.retried else ''}")
    failure = next((one for one in result.decisions if one.kind in _FAILURES), None)
    if failure is not None:
        _line(console, "", f"first that failed: {failure.subject} at {numbers.clock(failure.at_s)}: {failure.reason}")
    for sentence in incomplete_lines(summary.jobs):
        _line(console, "jobs", sentence)
    _line(console, "goodput", _goodput(summary))
    rates = summary.throughput
    _line(
        console, "throughput",
        f"{numbers.significant(rates.requests_per_s)} requests/s, "
        f"{numbers.significant(rates.input_tokens_per_s)} prompt tokens/s, "
        f"{numbers.significant(rates.output_tokens_per_s)} output tokens/s "
        f"({numbers.significant(rates.output_tokens_per_npu_s)} per NPU)",
    )  # fmt: skip
    cache = summary.cache
    _line(
        console, "cached prompt",
        f"{numbers.share(cache.hit_share)} of tokens, {numbers.share(cache.pulled_share)} from the KV-cache pool "
        f"({cache.pool_hits_blocks:,} of {cache.pool_lookups_blocks:,} blocks found)",
    )  # fmt: skip
    lost = f", {numbers.share(summary.lost_npu_share)} of it lost to faults" if summary.faults else ""
    _line(console, "NPU time", f"{numbers.significant(summary.npu_hours)} NPU-hours{lost}")
    for entry in (ENGINE, ACCURACY):
        if entry in result.config:
            _line(console, entry, result.config[entry])
    for table in _tables(result, summary):
        console.print()
        console.print(terminal_table(table, console.width))


def print_notes(notes: Mapping[str, str], console: Console) -> None:
    """Print how the trace's reader interpreted unusual records."""
    for note in notes.values():
        console.print(f"trace: {note}", highlight=False, soft_wrap=True)


def print_speed(result: SimResult, console: Console) -> None:
    """Print the speed of the simulation. It differs between runs, so pass a console on standard error."""
    if result.wall_s > 0:
        speed = numbers.significant(result.totals.end_s / result.wall_s)
        events = numbers.significant(result.totals.events / result.wall_s)
        console.print(f"simulated in {numbers.significant(result.wall_s)} s: {speed} × real time, {events} events/s")
        if result.wall_s > _LONG_S and compiled.in_use() is None:
            console.print("`cloudmatrix compile` makes that nearly twice as fast", style="dim")


def _line(console: Console, name: str, text: str) -> None:
    console.print(Text.assemble((f"{name:<14}", "dim"), text), soft_wrap=True)


def _supernodes(result: SimResult) -> str:
    return f", {result.supernodes} supernodes" if result.supernodes > 1 else ""


def _goodput(summary: Summary) -> str:
    goodput = summary.goodput
    if goodput is None:
        return "no SLOs given"
    parts = [
        f"{name} {numbers.limit(limit_s)} kept by {numbers.share(share)}"
        for name, limit_s, share in (
            ("TTFT", goodput.slo.ttft_s, goodput.ttft_attainment),
            ("TPOT", goodput.slo.tpot_s, goodput.tpot_attainment),
        )
        if limit_s is not None
    ]
    rate = numbers.significant(goodput.good_per_s)
    return f"{rate} requests/s, {numbers.share(goodput.attainment)} ({', '.join(parts)})"


def _tables(result: SimResult, summary: Summary) -> list[Table]:
    """Tables that are not empty."""
    found = [
        simulation_tables.latency_table(summary),
        job_table(summary.jobs),
        miss_table(summary.jobs),
        select(simulation_tables.pool_table(summary), *_POOL_COLUMNS),
        simulation_tables.plane_table(summary),
        simulation_tables.count_table(result),
        simulation_tables.scaling_sums(result),
        simulation_tables.expert_table(result),
        simulation_tables.fault_sums(summary),
    ]
    return [table for table in found if table.rows]

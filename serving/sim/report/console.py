"""The summary in a terminal. The text is the same for the same result; only the speed is real time, and goes apart."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serving import compiled
from serving.sim.report import numbers
from serving.sim.report.summary import Summary
from serving.sim.report.tables import latency_cells, scaling_sums
from serving.sim.report.tiles import outcome_text
from serving.sim.result import SimResult

_WIDE = 110
"""Columns from which every header has room in one line."""
_LONG_S = 10.0
"""Real time from which it is worth saying how to be quicker."""
_FAILURES = ("fail", "reject")
"""Kinds of decisions that end a request."""


def print_summary(result: SimResult, summary: Summary, console: Console) -> None:
    """Print what ran and what came out of it.

    Effects: writes to the console.
    """
    console.print(Text(f"{result.name}: {result.workload}", style="bold"))
    _line(console, "virtual time", f"{numbers.clock(summary.duration_s)}, seed {result.seed}{_supernodes(result)}")
    finished = f"{summary.outcomes['finished']:,} of {summary.requests:,} finished, {outcome_text(summary)}"
    _line(console, "requests", f"{finished}{f', {summary.retried:,} sent again' if summary.retried else ''}")
    failure = next((one for one in result.decisions if one.kind in _FAILURES), None)
    if failure is not None:
        _line(console, "", f"first that failed: {failure.subject} at {numbers.clock(failure.at_s)}: {failure.reason}")
    _line(console, "goodput", _goodput(summary))
    rates = summary.throughput
    _line(
        console, "throughput",
        f"{numbers.figure(rates.requests_per_s)} requests/s, {numbers.figure(rates.input_tokens_per_s)} prompt tok/s, "
        f"{numbers.figure(rates.output_tokens_per_s)} output tok/s "
        f"({numbers.figure(rates.output_tokens_per_npu_s)} per NPU)",
    )  # fmt: skip
    cache = summary.cache
    _line(
        console, "cached prompt",
        f"{numbers.share(cache.hit_share)} of tokens, {numbers.share(cache.pulled_share)} from the KV-cache pool "
        f"({cache.pool_hits_blocks:,} of {cache.pool_lookups_blocks:,} blocks found)",
    )  # fmt: skip
    lost = f", {numbers.share(summary.lost_npu_share)} of it lost to faults" if summary.faults else ""
    _line(console, "NPU time", f"{numbers.figure(summary.npu_hours)} NPU-hours{lost}")
    for table in _tables(result, summary):
        console.print()
        console.print(_narrow(table) if console.width < _WIDE else table)


def print_speed(result: SimResult, console: Console) -> None:
    """Print how fast the simulation was. Real time differs between runs: give a console on standard error.

    Effects: writes to the console.
    """
    if result.wall_s > 0:
        speed = numbers.figure(result.totals.end_s / result.wall_s)
        events = numbers.figure(result.totals.events / result.wall_s)
        console.print(f"simulated in {numbers.figure(result.wall_s)} s: {speed} × real time, {events} events/s")
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
        f"{name} {numbers.duration(limit_s)} kept by {numbers.share(share)}"
        for name, limit_s, share in (
            ("TTFT", goodput.slo.ttft_s, goodput.ttft_attainment),
            ("TPOT", goodput.slo.tpot_s, goodput.tpot_attainment),
        )
        if limit_s is not None
    ]
    return f"{numbers.figure(goodput.good_per_s)} requests/s, {numbers.share(goodput.attainment)} ({', '.join(parts)})"


def _tables(result: SimResult, summary: Summary) -> list[Table]:
    """Those that have something to show."""
    tables = [_latency(summary), _pools(summary), _planes(summary), _decisions(result), _scaling(result)]
    tables.append(_faults(summary))
    return [table for table in tables if table.row_count]


def _narrow(table: Table) -> Table:
    """With headers below each other, a word a line, so that no figure is broken or cut off."""
    for column in table.columns:
        column.header = str(column.header).replace(" ", "\n")
        column.no_wrap = True
    return table


def _latency(summary: Summary) -> Table:
    table = _table("latency", "mean", "p50", "p90", "p99", "max", "requests")
    for name, of in (("TTFT", summary.ttft_s), ("TPOT", summary.tpot_s), ("end to end", summary.e2e_s)):
        table.add_row(name, *latency_cells(of), numbers.count(of.count))
    return table


def _pools(summary: Summary) -> Table:
    table = _table(
        "pool", "NPUs", "NPU-h", "busy", "prompt tok/s", "output tok/s", "tok/s per NPU", "peak batch", "peak KV"
    )
    for pool in summary.pools:
        table.add_row(
            pool.name, numbers.count(pool.peak_npus), numbers.figure(pool.npu_hours), numbers.share(pool.busy_share),
            numbers.figure(pool.prompt_tokens_per_s), numbers.figure(pool.output_tokens_per_s),
            numbers.figure(pool.tokens_per_npu_s), numbers.count(pool.peak_batch), numbers.share(pool.peak_kv_share),
        )  # fmt: skip
    return table


def _planes(summary: Summary) -> Table:
    table = _table("plane", "moved", "mean use", "peak use")
    for plane in summary.planes:
        if plane.nbytes:
            mean, peak = numbers.share(plane.mean_share), numbers.share(plane.peak_share)
            table.add_row(plane.name.upper(), numbers.size(plane.nbytes), mean, peak)
    return table


def _decisions(result: SimResult) -> Table:
    table = _table("decision", "how often")
    for kind, number in sorted(result.decision_counts.items()):
        table.add_row(kind, numbers.count(number))
    return table


def _scaling(result: SimResult) -> Table:
    sums = scaling_sums(result)
    table = _table(*(head.name for head in sums.heads))
    for row in sums.rows:
        table.add_row(*row.cells)
    return table


def _faults(summary: Summary) -> Table:
    table = _table("fault", "how often", "sequences hit", "tokens lost", "NPU-s lost")
    for fault in summary.faults:
        table.add_row(
            fault.kind, numbers.count(fault.count), numbers.count(fault.sequences_hit),
            numbers.count(fault.tokens_lost), numbers.figure(fault.npu_seconds_lost),
        )  # fmt: skip
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, min_width=12)
    for name in others:
        table.add_column(name, justify="right")
    return table

"""The table at the end of a run: the block that users of `vllm bench serve` know, with what it leaves out.

Durations are in milliseconds here, as everywhere in that block; 80 columns are enough.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from loadgen.report import numbers
from loadgen.report.job_table import incomplete_lines, job_rows, miss_rows
from loadgen.result import MetricDistribution, RunResult, SweepResult
from loadgen.run_report.names import (
    BUSY_MACHINE,
    KEPT_UP,
    MAIN_METRICS,
    METRIC_TITLES,
    OWN_LIMIT,
    SECONDARY_METRICS,
    count_by_kind,
    generator_figures,
    has_both_clocks,
    outcome_kind,
    outcome_title,
    percentile_columns,
    present,
    title,
)
from loadgen.run_report.sweep_charts import load_text, sweep_warnings

WIDTH = 80
_NAME_WIDTH = 26
_CELL_WIDTH = 9
_CELLS = (WIDTH - _NAME_WIDTH) // _CELL_WIDTH
_NEGLIGIBLE_S = 0.0005
"""Waiting below this is not worth a line of the terminal; the report has every metric."""


def print_result(result: RunResult, console: Console) -> None:
    """Print one run's table.

    Effects: writes to the console.
    """
    _rule(console, "Serving Benchmark Result", "═")
    for name, value in _requests(result):
        _row(console, name, value)
    for name, value in _throughput(result):
        _row(console, name, value)
    _latencies(result, console)
    jobs = [] if result.jobs is None else [*job_rows(result.jobs), *miss_rows(result.jobs)]
    for heading, rows in (("SLOs", _slo(result)), ("Cache", _cache(result)), ("Jobs", jobs)):
        if rows:
            _rule(console, heading)
            for name, value in rows:
                _row(console, name, value)
    for sentence in incomplete_lines(result.jobs):
        _paragraph(console, sentence, "yellow")
    _errors(result, console)
    _rule(console, "Can these figures be believed?")
    _verdict(result, console)
    console.print("═" * WIDTH, style="dim")


def print_sweep(sweep: SweepResult, console: Console) -> None:
    """Print one line per point, and what a search found.

    Effects: writes to the console.
    """
    tested = any(point.result.slo for point in sweep.points)
    _rule(console, f"Sweep of the {sweep.parameter}", "═")
    head = f"{'load':<18}{'req/s':>8}{'out tok/s':>10}{'TTFT p50':>9}{'p99':>8}{'TPOT p50':>9}{'p99':>8}"
    console.print(Text(f"{head}{'in SLOs' if tested else 'failed':>10}", style="dim"))
    for point in sweep.points:
        result = point.result
        cells = [_ms(_percentile(result, name, part)) for name in ("ttft", "tpot") for part in ("50", "99")]
        last = numbers.share(result.slo.attainment) if result.slo else f"{count_by_kind(result.outcomes)['failed']:,}"
        text = (
            f"{load_text(sweep.parameter, point.value):<18}{numbers.significant(result.throughput.requests_per_s):>8}"
            f"{numbers.significant(result.throughput.output_tokens_per_s):>10}{cells[0]:>9}{cells[1]:>8}{cells[2]:>9}{cells[3]:>8}"
            f"{last:>10}"
        )
        console.print(Text(text, style="bold" if point.value == sweep.best else ""))
    console.print(Text("Latencies in milliseconds, from the intended send time.", style="dim"))
    _warnings(sweep_warnings(sweep), console)
    _paragraph(console, sweep.explanation, "bold")
    console.print("═" * WIDTH, style="dim")


def _requests(result: RunResult) -> Iterator[tuple[str, str]]:
    """Rows with the server, the model and the numbers of requests."""
    kinds = count_by_kind(result.outcomes)
    yield "Server", f"{result.url}{result.endpoint}"
    if result.model:
        yield "Model", result.model
    yield "Successful requests", f"{kinds['ok']:,}"
    yield "Failed requests", f"{kinds['failed']:,}"
    for kind, name in (("deliberate", "Ended on purpose"), ("unfinished", "Unfinished at the end")):
        if kinds[kind]:
            yield name, f"{kinds[kind]:,}"
    if result.warmup_requests:
        yield "Warm-up requests, left out", f"{result.warmup_requests:,}"
    yield "Benchmark duration [s]", f"{result.duration_s:,.2f}"
    yield "Concurrent requests, mean / peak", f"{result.mean_concurrency:,.2f} / {result.peak_concurrency:,}"


def _throughput(result: RunResult) -> Iterator[tuple[str, str]]:
    """Rates, and tokens."""
    rates = result.throughput
    generator = result.generator
    if generator.offered_per_s is not None and generator.achieved_per_s is not None:
        yield (
            "Request rate, offered / sent [req/s]",
            f"{generator.offered_per_s:,.2f} / {generator.achieved_per_s:,.2f}",
        )
    yield "Request throughput [req/s]", f"{rates.requests_per_s:,.2f}"
    if rates.goodput_per_s is not None:
        yield "Request goodput [req/s]", f"{rates.goodput_per_s:,.2f}"
    yield "Output token throughput [tok/s]", f"{rates.output_tokens_per_s:,.2f}"
    yield "Total token throughput [tok/s]", f"{rates.total_tokens_per_s:,.2f}"
    for name in ("input_tokens", "output_tokens"):
        metric = result.metrics.get(name)
        if metric and metric.mean is not None:
            yield f"{METRIC_TITLES[name]} per request, mean", f"{metric.mean:,.1f}"
    for name, side in result.lengths.items():
        if side.shortened or side.lengthened:
            sent = numbers.MISSING if side.sent_mean is None else f"{side.sent_mean:,.1f}"
            yield f"  {name}, asked for / sent, mean", f"{side.asked_mean:,.1f} / {sent}"


def _latencies(result: RunResult, console: Console) -> None:
    """Mean, percentiles and maximum of every latency, from both clocks where they differ."""
    both = has_both_clocks(result)
    main = [(name, values) for name, values in present(result, MAIN_METRICS) if both or not name.endswith("_sent")]
    others = [item for item in present(result, SECONDARY_METRICS) if (item[1].max or 0.0) >= _NEGLIGIBLE_S]
    if not main:
        return
    columns = ["mean", *percentile_columns(result), "max"]
    for start in range(0, len(columns), _CELLS):
        part = columns[start : start + _CELLS]
        _rule(console, "Latency [ms]")
        _line(console, "", [name if name in ("mean", "max") else numbers.percentile_name(name) for name in part], "dim")
        for name, values in [*main, *others]:
            emphasis = "" if name in MAIN_METRICS else "dim"
            _line(console, title(name, both), [_ms(_value(values, column)) for column in part], emphasis)
        if count_by_kind(result.outcomes)["failed"]:
            _with_failures(result, console, part)


def _with_failures(result: RunResult, console: Console, columns: Sequence[str]) -> None:
    """TTFT and E2E when each failed request counts as infinitely late."""
    for name in ("ttft", "e2e"):
        metric = result.metrics.get(name)
        if metric and metric.with_failures:
            cells = [_late(metric, column) if column in metric.with_failures else "" for column in columns]
            _line(console, f"{METRIC_TITLES[name]}, failures = ∞", cells, "red")


def _slo(result: RunResult) -> list[tuple[str, str]]:
    """Attainment as a whole and of each limit."""
    slo = result.slo
    if slo is None:
        return []
    rows = [
        (f"{METRIC_TITLES.get(name, name)} within {numbers.limit(limit)}", numbers.share(slo.each.get(name)))
        for name, limit in slo.targets.items()
    ]
    interval = f"{numbers.share(slo.wilson95[0])} … {numbers.share(slo.wilson95[1])}"
    return [*rows, ("Within all of them", numbers.share(slo.attainment)), ("  its 95 % interval", interval)]


def _cache(result: RunResult) -> list[tuple[str, str]]:
    """Prompt tokens read from a cache, if reported."""
    cache = result.cache
    if cache is None or cache.hit_share is None:
        return []
    text = f"{cache.cached_tokens:,} of {cache.input_tokens:,} ({numbers.share(cache.hit_share)})"
    return [("Prompt tokens from the cache", text)]


def _errors(result: RunResult, console: Console) -> None:
    """Print the errors of failed requests."""
    errors = [error for error in result.errors if outcome_kind(error.outcome) == "failed"]
    if errors:
        _rule(console, "Errors")
    for error in errors:
        status = f" [{error.status}]" if error.status else ""
        _paragraph(console, f"{error.count:,} × {outcome_title(error.outcome)}{status}: {error.example}", "red")


def _verdict(result: RunResult, console: Console) -> None:
    """The generator's own state, and every warning, as sentences."""
    generator = result.generator
    if result.interrupted:
        _paragraph(console, "The run was interrupted; what is shown is what was finished by then.", "bold red")
    if generator.is_bottleneck:
        _paragraph(console, f"No. {OWN_LIMIT}", "bold red")
        for reason in generator.reasons:
            _paragraph(console, reason, "red")
    if generator.machine_was_busy:
        _paragraph(console, f"Not quite. {BUSY_MACHINE}", "bold yellow")
        for reason in generator.machine_reasons:
            _paragraph(console, reason, "yellow")
    if not (generator.is_bottleneck or generator.machine_was_busy):
        _paragraph(console, f"{KEPT_UP} {generator_figures(generator)}", "green")
    _warnings(result.warnings, console)


def _warnings(warnings: Sequence[str], console: Console) -> None:
    """One warning in full; of several a line each, the worst first, without the reasons that the report gives."""
    if len(warnings) == 1:
        _paragraph(console, warnings[0], "yellow")
    elif warnings:
        _paragraph(console, f"{len(warnings)} warnings, the worst first; the report has them in full:", "bold yellow")
        for warning in warnings:
            _paragraph(console, f"- {warning.partition('; ')[0]}", "yellow")


def _value(values: MetricDistribution, column: str) -> float | None:
    return {"mean": values.mean, "max": values.max}.get(column, values.percentiles.get(column))


def _late(metric: MetricDistribution, column: str) -> str:
    """A percentile with failures; infinite where they reach it."""
    value = metric.with_failures[column]
    return "∞" if value is None else _ms(value)


def _percentile(result: RunResult, name: str, percentile: str) -> float | None:
    metric = result.metrics.get(name)
    return metric.percentiles.get(percentile) if metric else None


def _ms(seconds: float | None) -> str:
    """Milliseconds in at most seven places, below a thousand seconds."""
    if seconds is None or not math.isfinite(seconds):
        return numbers.MISSING
    digits = 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds * 1e3:,.{digits}f}"


def _rule(console: Console, heading: str, stroke: str = "─") -> None:
    console.print(Text(f" {heading} ".center(WIDTH, stroke), style="bold" if stroke == "═" else "dim"))


def _row(console: Console, name: str, value: str) -> None:
    """Name to the left, value to the right; a long value starts on a new line."""
    room = WIDTH - len(name) - 2
    console.print(Text(f"{name}  {value:>{room}}" if len(value) <= room else f"{name}\n  {value}"), soft_wrap=True)


def _line(console: Console, name: str, cells: Sequence[str], style: str) -> None:
    text = f"{name:<{_NAME_WIDTH}}{''.join(f'{cell:>{_CELL_WIDTH}}' for cell in cells)}"
    console.print(Text(text, style=style), soft_wrap=True)


def _paragraph(console: Console, text: str, style: str) -> None:
    if text:
        console.print(Text(textwrap.fill(text, WIDTH, subsequent_indent="  "), style=style), soft_wrap=True)

"""Tables of one run's page: latencies, steady state, outcomes, errors, repetitions."""

from collections.abc import Sequence

from loadgen.metrics.definitions import DEFINITIONS
from loadgen.report import numbers
from loadgen.report.fragments import Html, details, element, join, tile
from loadgen.report.page import tiles as tiles_of
from loadgen.report.table import Cell, columns, html_table, table_of
from loadgen.result import MetricDistribution, RunResult
from loadgen.run_report.names import (
    MAIN_METRICS,
    METRIC_TITLES,
    TOKEN_METRICS,
    all_metrics,
    count_by_kind,
    has_both_clocks,
    metric_title,
    outcome_kind,
    outcome_title,
    percentile_columns,
    present,
    title,
)

_KIND_TITLES = {
    "ok": "successful", "failed": "failed", "deliberate": "ended on purpose", "unfinished": "unfinished",
}  # fmt: skip
_STEADY_METRICS = ("ttft", "tpot", "itl", "e2e")


def latency_tables(result: RunResult) -> Html:
    """Main metrics in a table, all others in a collapsed section."""
    both = has_both_clocks(result)
    main = [(name, values) for name, values in present(result, MAIN_METRICS) if both or not name.endswith("_sent")]
    shown = {name for name, _ in main}
    others = [(name, values) for name, values in all_metrics(result) if name not in shown]
    shown_at = percentile_columns(result)
    parts = [_metric_table(main, shown_at, both)] if main else []
    if any(values.with_failures for _, values in main) and count_by_kind(result.outcomes)["failed"]:
        parts.append(_failure_table(main, shown_at, both))
    if others:
        parts.append(details(f"{len(others)} more metrics", _metric_table(others, shown_at, both)))
    return join(parts)


def steady_state(result: RunResult) -> Html:
    """The main metrics without ramp and drain, and those of the whole run."""
    steady = result.steady_state
    if steady is None:
        return Html("")
    text = (
        f"From {numbers.duration(steady.from_s)} to {numbers.duration(steady.to_s)}: the longest stretch with "
        f"at least 90 % of peak concurrency; {steady.requests:,} requests started in it."
    )
    rows: list[list[object]] = [
        [
            "Requests/s",
            numbers.significant(result.throughput.requests_per_s),
            numbers.significant(steady.requests_per_s),
        ],
        [
            "Output tokens/s",
            numbers.significant(result.throughput.output_tokens_per_s),
            numbers.significant(steady.output_tokens_per_s),
        ],
    ]
    for name in _STEADY_METRICS:
        whole, part = result.metrics.get(name), steady.metrics.get(name)
        if whole and part:
            rows.extend(
                [
                    f"{METRIC_TITLES[name]} {numbers.percentile_name(percentile)}",
                    numbers.duration(whole.percentiles.get(percentile)),
                    numbers.duration(part.percentiles.get(percentile)),
                ]
                for percentile in ("50", "99")
                if percentile in whole.percentiles and percentile in part.percentiles
            )
    compared = html_table(table_of(columns("", "whole run", "steady state"), rows))
    return details("Steady state", element("p", text, "soft"), compared)


def outcome_bar(result: RunResult) -> Html:
    """All requests as one bar, and each outcome with its number."""
    total = sum(result.outcomes.values())
    if not total:
        return Html("")
    kinds = {kind: number for kind, number in count_by_kind(result.outcomes).items() if number}
    spans = "".join(
        f'<span class="back-{kind}" style="flex:{number}" title="{number:,} {_KIND_TITLES[kind]}"></span>'
        for kind, number in kinds.items()
    )
    text = ", ".join(
        f"{number:,} {outcome_title(outcome)}" for outcome, number in sorted(result.outcomes.items(), key=_by_number)
    )
    mean = numbers.significant(result.mean_concurrency)
    warmup = f" {result.warmup_requests:,} warm-up requests are left out everywhere." if result.warmup_requests else ""
    open_at_once = f" At most {result.peak_concurrency:,} were open at once, {mean} on average."
    return join(
        [Html(f'<div class="shares" aria-hidden="true">{spans}</div>'), element("p", f"{text}.{open_at_once}{warmup}")]
    )


def lengths_table(result: RunResult) -> Html:
    """Requested and sent tokens."""
    titles = {"input": "prompts", "output": "answers (limit in the request)"}
    rows: list[list[object]] = [
        [
            titles.get(name, name),
            f"{side.asked_mean:,.1f}",
            numbers.MISSING if side.sent_mean is None else f"{side.sent_mean:,.1f}",
            f"{side.asked_max:,}",
            numbers.MISSING if side.sent_max is None else f"{side.sent_max:,}",
            f"{side.shortened:,} of {side.requests:,}",
            f"{side.lengthened:,}",
        ]
        for name, side in result.lengths.items()
    ]
    heads = columns("tokens", "mean asked for", "mean sent", "longest asked for", "longest sent", "shortened", "raised")
    return html_table(table_of(heads, rows)) if rows else Html("")


def errors_table(result: RunResult) -> Html:
    """Errors with an example of each."""
    rows = [
        [
            outcome_title(error.outcome),
            f"{error.count:,} ×",
            f"HTTP {error.status}" if error.status else "",
            error.example,
        ]
        for error in result.errors
        if outcome_kind(error.outcome) != "ok"
    ]
    heads = columns("error", "count", "status", "example", text=("error", "status"), long=("example",))
    return html_table(table_of(heads, rows), stack=True) if rows else Html("")


def repetitions_table(result: RunResult) -> Html:
    """Main figures of each repetition; the spread between them is what single runs hide."""
    runs = result.repetitions
    if len(runs) < 2:
        return Html("")
    names = [name for name in _STEADY_METRICS if all(name in run.means for run in runs)]
    head = ["", "requests/s", "output tokens/s"]
    for name in names:
        head += [f"{METRIC_TITLES[name]} mean", f"{METRIC_TITLES[name]} p99"]
    rows: list[list[object]] = []
    for number, run in enumerate(runs, start=1):
        row: list[object] = [
            number,
            numbers.significant(run.throughput.requests_per_s),
            numbers.significant(run.throughput.output_tokens_per_s),
        ]
        for name in names:
            row += [numbers.duration(run.means[name]), numbers.duration(run.p99.get(name))]
        rows.append(row)
    return html_table(table_of(columns(*head), rows))


def _metric_table(metrics: list[tuple[str, MetricDistribution]], percentiles: list[str], both: bool) -> Html:
    """Mean with its interval, percentiles and the maximum of each metric."""
    rows = [
        [
            title(name, both),
            numbers.quantity(values.mean, _unit(name, values)),
            _interval(values, _unit(name, values)),
            *(numbers.quantity(values.percentiles.get(column), _unit(name, values)) for column in percentiles),
            numbers.quantity(values.max, _unit(name, values)),
        ]
        for name, values in metrics
    ]
    heads = columns("", "mean", "95 % interval", *map(numbers.percentile_name, percentiles), "max")
    return html_table(table_of(heads, rows))


def _failure_table(metrics: list[tuple[str, MetricDistribution]], percentiles: list[str], both: bool) -> Html:
    """Percentiles when a failed request counts as infinitely late."""
    rows = [
        [title(name, both), *(_with_failure(values, column) for column in percentiles)]
        for name, values in metrics
        if values.with_failures
    ]
    text = "Failed requests are missing above. Here each counts as infinitely late: failing fast must not look good."
    heads = columns("with failures", *map(numbers.percentile_name, percentiles))
    return join([element("p", text, "soft"), html_table(table_of(heads, rows))])


def _with_failure(values: MetricDistribution, column: str) -> object:
    """A percentile; infinity where failures reach it."""
    value = values.with_failures.get(column)
    return numbers.quantity(value, values.unit) if value is not None else Cell("∞", "bad")


def _interval(values: MetricDistribution, unit: str) -> object:
    """The interval of the mean, as half its width."""
    if values.ci95 is None:
        return numbers.MISSING
    low, high = values.ci95
    return element("span", f"{numbers.quantity(low, unit)} … {numbers.quantity(high, unit)}", "soft")


def _unit(name: str, values: MetricDistribution) -> str:
    return "" if name in TOKEN_METRICS else values.unit


def _by_number(item: tuple[str, int]) -> int:
    return -item[1]


def samples_table(result: RunResult) -> Html:
    """Starts of a few prompts and responses."""
    rows = [
        [
            f"{one.index}",
            Cell(one.prompt, "soft"),
            one.answer or numbers.MISSING,
            _tokens(one.input_tokens, one.output_tokens),
        ]
        for one in result.samples
    ]
    heads = columns("request", "prompt begins", "answer begins", "tokens", long=("prompt begins", "answer begins"))
    note = "Of the first requests that were answered; --no-sample-texts leaves them out." if rows else ""
    table = html_table(table_of(heads, rows, note), stack=True)
    return join([element("h3", "Sample texts"), table]) if rows else Html("")


def _tokens(inside: int | None, outside: int | None) -> str:
    """Prompt and response: "256 + 64"."""
    return f"{numbers.count(inside)} + {numbers.count(outside)}"


# The table of metric definitions in the page, from the one place where they are defined.


def definitions_table(names: Sequence[str]) -> Html:
    """Definitions of the metrics that a page shows, in their usual order."""
    rows: list[list[object]] = [
        [metric_title(metric.name), metric.what, element("code", metric.formula)]
        for metric in DEFINITIONS
        if metric.name in names
    ]
    heads = columns("metric", "meaning", "formula", text=("metric",), long=("meaning", "formula"))
    return html_table(table_of(heads, rows), stack=True) if rows else Html("")


# The main figures of a run, large.

_LATENCIES = ("ttft", "tpot", "e2e")


def tiles(result: RunResult) -> Html:
    """One tile for each main latency, throughput, SLOs, outcomes and the cache."""
    parts = [_latency(result, name) for name in _LATENCIES if result.metrics.get(name) and result.metrics[name].count]
    parts.append(_throughput(result))
    if result.slo:
        parts.append(_slo(result))
    parts.append(_outcomes(result))
    if result.cache and result.cache.hit_share is not None:
        subtitle = f"of {result.cache.input_tokens:,} prompt tokens"
        parts.append(tile("Taken from the cache", numbers.share(result.cache.hit_share), "", [subtitle]))
    return tiles_of(parts)


def _latency(result: RunResult, name: str) -> Html:
    """Median, with the tail below."""
    metric = result.metrics[name]
    figure, _, unit = numbers.duration(metric.percentiles.get("50", metric.mean)).partition(" ")
    tail = [percentile for percentile in ("95", "99") if percentile in metric.percentiles]
    more = [f"{numbers.percentile_name(one)} {numbers.duration(metric.percentiles[one])}" for one in tail]
    basis = "median" if "50" in metric.percentiles else "mean"
    return tile(f"{METRIC_TITLES[name]}, {basis}", figure, unit, more)


def _throughput(result: RunResult) -> Html:
    """Tokens and requests per second."""
    rates = result.throughput
    more = [
        f"{numbers.significant(rates.requests_per_s)} requests/s",
        f"{numbers.significant(rates.total_tokens_per_s)} tokens/s with prompts",
    ]
    if result.npus:
        more.insert(0, f"{numbers.significant(rates.output_tokens_per_s / result.npus)} per NPU ({result.npus:,} NPUs)")
    return tile("Output throughput", numbers.significant(rates.output_tokens_per_s), "tokens/s", more)


def _slo(result: RunResult) -> Html:
    """Attainment with its interval, and goodput."""
    slo = result.slo
    assert slo is not None
    low, high = slo.wilson95
    limits = ", ".join(
        f"{METRIC_TITLES.get(name, name)} ≤ {numbers.limit(limit)}" for name, limit in slo.targets.items()
    )
    more = [f"95 % interval {numbers.share(low)} to {numbers.share(high)}", limits]
    if result.throughput.goodput_per_s is not None:
        more.insert(0, f"goodput {numbers.significant(result.throughput.goodput_per_s)} requests/s")
    return tile("Requests within the SLOs", numbers.share(slo.attainment), "", more)


def _outcomes(result: RunResult) -> Html:
    """Failures, or their absence."""
    kinds = count_by_kind(result.outcomes)
    counted = kinds["ok"] + kinds["failed"]
    others = [
        f"{kinds[kind]:,} {text}"
        for kind, text in (("deliberate", "ended on purpose"), ("unfinished", "unfinished"))
        if kinds[kind]
    ]
    more = [f"of {counted:,} requests", ", ".join(others)] if others else [f"of {counted:,} requests"]
    figure = f"{kinds['failed']:,}"
    shown = element("span", figure, "bad") if kinds["failed"] else figure
    part = f"({numbers.share(kinds['failed'] / counted)})" if kinds["failed"] else ""
    return tile("Failed requests", shown, part, more)

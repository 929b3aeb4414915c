"""Tables of a simulation, for page and terminal."""

import math
from collections.abc import Sequence

from hardware.cost.loads import PredictedStep
from loadgen.report import numbers
from loadgen.report.fragments import Html, tile
from loadgen.report.table import Table, TableRow, columns, table_of
from serving.virtual.report.gantt import layer_parts, stream_name
from serving.virtual.report.latencies import Goodput, LatencyFigures, Slo
from serving.virtual.report.pools import ratio
from serving.virtual.report.summary import Summary
from serving.virtual.result import DecisionRecord, SimResult

MOST_ROWS = 1500
_MOST_OF_A_KIND = 300
_MOST_LETTERS = 400
"""Most letters of a reason; a page with a thousand long ones would be slow to open."""


def latency_table(summary: Summary) -> Table:
    """Percentiles of each metric."""
    rows = (("TTFT", summary.ttft_s), ("TPOT", summary.tpot_s), ("end to end", summary.e2e_s))
    note = f"{summary.one_token:,} answers of one token have no TPOT." if summary.one_token else ""
    return Table(
        columns("", "requests", "mean", "p50", "p90", "p99", "max"),
        [TableRow([name, numbers.count(of.count), *latency_cells(of)]) for name, of in rows],
        note,
    )


def latency_cells(of: LatencyFigures) -> list[str]:
    """Mean, p50, p90, p99 and the largest, as durations."""
    return [numbers.duration(value) for value in (of.mean, of.p50, of.p90, of.p99, of.maximum)]


def pool_table(summary: Summary) -> Table:
    """Every pool of instances."""
    heads = columns(
        "pool", "instances", "peak NPUs", "NPU-hours", "busy", "steps", "prompt tokens/s", "output tokens/s",
        "tokens/s per NPU", "… while busy", "peak batch", "peak KV", "preemptions",
    )  # fmt: skip
    rows = [
        TableRow([
            pool.name, numbers.count(pool.instances), numbers.count(pool.peak_npus),
            numbers.significant(pool.npu_hours), numbers.share(pool.busy_share), numbers.count(pool.steps),
            numbers.significant(pool.prompt_tokens_per_s),
            numbers.significant(pool.output_tokens_per_s), numbers.significant(pool.tokens_per_npu_s),
            numbers.significant(pool.tokens_per_busy_npu_s), numbers.count(pool.peak_batch),
            numbers.share(pool.peak_kv_share), numbers.count(pool.preemptions),
        ])
        for pool in summary.pools
    ]  # fmt: skip
    return Table(heads, rows)


def plane_table(summary: Summary) -> Table:
    """Every plane that carried traffic."""
    rows = [
        TableRow(
            [
                plane.name.upper(),
                numbers.size(plane.nbytes),
                numbers.share(plane.mean_share),
                numbers.share(plane.peak_share),
            ]
        )
        for plane in summary.planes
        if plane.nbytes
    ]
    return Table(columns("plane", "moved", "mean use", "peak use"), rows)


def parts_table(cost: PredictedStep) -> Table:
    """Operators of the layer, with their formula."""
    heads = columns(
        "operator", "stream", "one run", "runs in a step", "in a step", "bound by", "formula",
        text=("stream", "bound by"), long=("formula",),
    )  # fmt: skip
    rows = [
        TableRow([
            part.name, stream_name(cost, part.stream), numbers.duration(part.time_s / max(1, part.runs)),
            numbers.count(part.runs), numbers.duration(part.time_s), part.bound, part.formula,
        ])
        for part in layer_parts(cost)
    ]  # fmt: skip
    return Table(heads, rows)


def count_table(result: SimResult) -> Table:
    """Decisions by kind."""
    rows = [TableRow([kind, numbers.count(number)]) for kind, number in sorted(result.decision_counts.items())]
    return Table(columns("decision", "how often"), rows)


def decision_table(result: SimResult) -> Table:
    """The latest decisions of each kind, in order of time."""
    chosen = _newest(result.decisions)
    whole = max(sum(result.decision_counts.values()), len(result.decisions))
    heads = columns("at", "kind", "about", "decision", "reason", text=("kind", "about", "decision"), long=("reason",))
    rows = [
        TableRow([numbers.clock(one.at_s), one.kind, one.subject, one.choice, _cut(one.reason)], kind=one.kind)
        for one in chosen
    ]
    note = f"The newest of each kind: {len(rows):,} of {whole:,}." if len(rows) < whole else ""
    return Table(heads, rows, note)


def scaling_sums(result: SimResult) -> Table:
    """How often the targets of each pool changed, and why."""
    kinds = sorted({one.kind for one in result.scaling})
    rows = []
    for pool in dict.fromkeys(one.pool for one in result.scaling):
        changes = [one for one in result.scaling if one.pool == pool]
        targets = [changes[0].before, *(one.target for one in changes)]
        cells = [pool, numbers.count(len(changes)), numbers.count(min(targets)), numbers.count(max(targets))]
        rows.append(TableRow(cells + [numbers.count(sum(one.kind == kind for one in changes)) for kind in kinds]))
    return Table(columns("scaling", "changes", "least", "most", *kinds), rows)


def scaling_table(result: SimResult) -> Table:
    """Changes of targets, up to a limit the first ones."""
    heads = columns("at", "pool", "from", "to", "kind", "reason", text=("pool", "kind"), long=("reason",))
    rows = [
        TableRow([
            numbers.clock(one.at_s), one.pool, numbers.count(one.before), numbers.count(one.target), one.kind,
            _cut(one.reason),
        ])
        for one in result.scaling[:MOST_ROWS]
    ]  # fmt: skip
    return Table(heads, rows, _of(len(rows), len(result.scaling)))


def expert_table(result: SimResult) -> Table:
    """Changes of expert maps, up to a limit the first ones."""
    heads = columns(
        "experts", "at", "group", "ranks", "moves", "balancedness", "after", "reason",
        text=("group",), long=("reason",),
    )  # fmt: skip
    rows = [
        TableRow([
            one.kind, numbers.clock(one.at_s), one.group, numbers.count(one.ranks), numbers.count(one.moves),
            "" if math.isnan(one.before) else f"{one.before:.3f}", f"{one.after:.3f}", _cut(one.reason),
        ])
        for one in result.experts[:MOST_ROWS]
    ]  # fmt: skip
    return Table(heads, rows, _of(len(rows), len(result.experts)))


def fault_sums(summary: Summary) -> Table:
    """Cost of each kind of fault."""
    rows = [
        TableRow([
            one.kind, numbers.count(one.count), numbers.count(one.sequences_hit), numbers.count(one.tokens_lost),
            numbers.significant(one.npu_seconds_lost),
        ])
        for one in summary.faults
    ]  # fmt: skip
    heads = columns("fault", "how often", "sequences hit", "tokens lost", "NPU-seconds lost")
    return Table(heads, rows, f"Together {numbers.share(summary.lost_npu_share)} of all NPU time.")


def fault_table(result: SimResult) -> Table:
    """Faults, up to a limit the first ones."""
    heads = columns(
        "at", "kind", "target", "until", "sequences hit", "tokens lost", "NPU-seconds lost", text=("kind", "target")
    )
    rows = [
        TableRow([
            numbers.clock(one.at_s), one.kind, one.target, _until(one.until_s), numbers.count(one.sequences_hit),
            numbers.count(one.tokens_lost), numbers.significant(one.npu_seconds_lost),
        ])
        for one in result.faults[:MOST_ROWS]
    ]  # fmt: skip
    return Table(heads, rows, _of(len(rows), len(result.faults)))


def instance_table(result: SimResult) -> Table:
    """Instances, up to a limit the first ones."""
    heads = columns(
        "instance", "pool", "NPUs", "from", "until", "busy", "steps", "prompt tokens", "output tokens", "preemptions",
        "peak batch", "peak KV", text=("pool",),
    )  # fmt: skip
    rows = []
    for one in result.instances[:MOST_ROWS]:
        rows.append(TableRow([
            one.name, one.pool, numbers.count(one.npus), numbers.clock(one.started_s), _until(one.stopped_s),
            numbers.share(ratio(one.work_s, one.load_s)), numbers.count(one.steps),
            numbers.count(one.prompt_tokens), numbers.count(one.output_tokens), numbers.count(one.preemptions),
            numbers.count(one.peak_batch), numbers.share(one.peak_kv_share),
        ]))  # fmt: skip
    return Table(heads, rows, _of(len(rows), len(result.instances)))


def config_table(result: SimResult) -> Table:
    """Table of the simulated configuration."""
    return table_of(columns("setting", "value", long=("value",)), result.config.items())


def _newest(decisions: Sequence[DecisionRecord]) -> list[DecisionRecord]:
    """The latest decisions in order of time, limited per kind and in total."""
    kept: dict[str, int] = {}
    chosen = []
    for one in sorted(decisions, key=lambda one: one.at_s, reverse=True):
        kept[one.kind] = kept.get(one.kind, 0) + 1
        if kept[one.kind] <= _MOST_OF_A_KIND:
            chosen.append(one)
    return chosen[:MOST_ROWS][::-1]


def _until(moment_s: float) -> str:
    """Text of an end time [s]; nan means the end of the run."""
    return "end" if moment_s != moment_s else numbers.clock(moment_s)


def _of(shown: int, whole: int) -> str:
    return f"The first {shown:,} of {whole:,}." if shown < whole else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


# The main figures at the top of the page.


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

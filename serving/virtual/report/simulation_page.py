"""report.html: the whole result on one self-contained page. The same result gives the same bytes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardware.cost.loads import PredictedStep
from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key
from loadgen.report.fragments import element
from loadgen.report.job_table import job_section
from loadgen.report.page import Page, facts, render, tiles
from loadgen.report.table import Table, TableRow, columns, filtered_table, html_table
from serving.terminal import write_file
from serving.version import VERSION
from serving.virtual.report import simulation_tables
from serving.virtual.report.gantt import layer_chart
from serving.virtual.report.latencies import Floats, Latencies, Slo, floats, latencies
from serving.virtual.report.simulation_charts import distribution_charts, time_charts
from serving.virtual.report.simulation_tables import summary_tiles
from serving.virtual.report.summary import Summary, summarize
from serving.virtual.result import ACCURACY, ENGINE, RequestColumns, SimResult

_FOOTNOTE = (
    "Times are virtual. TTFT: arrival to first token. TPOT: first to last token, over output tokens less one. Goodput: "
    "requests per second that finished within every SLO."
)


def report_page(
    result: SimResult, slo: Slo | None = None, *, step_cost: PredictedStep | None = None, summary: Summary | None = None
) -> str:
    """The page.

    Args:
        slo: limits that plots and figures show; None = no limits.
        step_cost: a typical decode step of the run, whose layer is drawn; None = no such section.
        summary: `summarize(result, slo)`, if already computed.
    Returns: HTML of one file, whose size hardly depends on the number of requests.
    """
    times = latencies(result.requests)
    summary = summary or summarize(result, slo, times=times)
    page = Page(f"{result.name} – simulation", footnote=_FOOTNOTE)
    page.body += [element("h1", result.name), facts(_facts(result, summary)), tiles(summary_tiles(summary))]
    page.add(
        "latency", "Latency", page.draw(distribution_charts(times, slo), three=True),
        html_table(simulation_tables.latency_table(summary)),
    )  # fmt: skip
    page.add("jobs", "Jobs", *job_section(summary.jobs))
    page.add(
        "slowest", "Slowest requests", page.draw(slowest_charts(result.requests, times)),
        filtered_table(slowest_table(result.requests, times), "slowest-rows", "latency"), short="Slowest",
    )  # fmt: skip
    page.add("time", "Over time", page.draw(time_charts(result, times, slo)))
    page.add(
        "pools",
        "Pools and planes",
        html_table(simulation_tables.pool_table(summary)),
        html_table(simulation_tables.plane_table(summary)),
    )
    if step_cost is not None:
        page.add(
            "layer", "One decode layer", element("p", _layer_note(step_cost), "soft"),
            page.draw([layer_chart(step_cost)], single=True), html_table(simulation_tables.parts_table(step_cost)),
        )  # fmt: skip
    _add_events(page, result, summary)
    page.add("instances", "Instances", html_table(simulation_tables.instance_table(result), tall=True))
    page.add("configuration", "Configuration", html_table(simulation_tables.config_table(result)))
    return render(page, f"cloudmatrix {VERSION}")


def write_page(
    path: Path,
    result: SimResult,
    slo: Slo | None = None,
    *,
    step_cost: PredictedStep | None = None,
    summary: Summary | None = None,
) -> None:
    """Write the page to a file.

    Raises: ConfigError if the file cannot be written.
    """
    write_file(path, report_page(result, slo, step_cost=step_cost, summary=summary).encode())


def _add_events(page: Page, result: SimResult, summary: Summary) -> None:
    """Add the sections on decisions, scaling, experts and faults."""
    decisions = simulation_tables.decision_table(result)
    page.add(
        "decisions", "Decisions", html_table(simulation_tables.count_table(result)),
        filtered_table(decisions, "decision-rows", "decision"),
    )  # fmt: skip
    if result.scaling:
        page.add(
            "scaling", "Scaling", html_table(simulation_tables.scaling_sums(result)),
            html_table(simulation_tables.scaling_table(result), tall=True),
        )  # fmt: skip
    if result.experts:
        page.add("experts", "Experts", html_table(simulation_tables.expert_table(result), tall=True))
    if result.faults:
        page.add(
            "faults", "Faults", html_table(simulation_tables.fault_sums(summary)),
            html_table(simulation_tables.fault_table(result), tall=True),
        )  # fmt: skip


def _facts(result: SimResult, summary: Summary) -> list[tuple[str, object]]:
    """The facts of a run: names and values."""
    return [
        ("workload", result.workload),
        ("requests", numbers.count(summary.requests)),
        ("lasted", numbers.clock(summary.duration_s)),
        ("seed", result.seed),
        ("supernodes", numbers.count(result.supernodes) if result.supernodes > 1 else ""),
        (ENGINE, result.config.get(ENGINE, "")),
        (ACCURACY, result.config.get(ACCURACY, "")),
    ]


def _layer_note(cost: PredictedStep) -> str:
    """Note on how the streams of a layer share the dies."""
    overlap = (
        "Two microbatches take turns: while one has the attention stream, the other has the expert stream; the shorter "
        f"stream waits. The attention stream has {numbers.share(cost.cube_split)} of the cube cores."
        if cost.microbatch
        else "Without microbatches the streams follow each other, each with all the cores."
    )
    return f"{overlap} A whole step lasts {numbers.duration(cost.total_s)}. Point at a bar for its name and time."


# Slowest requests, with their time in queues, prefill, transfer and decode.

PARTS = ("queue", "prefill", "transfer", "decode")
_COLORS = ("grey", "prefill", "green", "decode")
_SHOWN, _DRAWN = 50, 20
_LANE_PX = 20
_KINDS = ("TTFT", "TPOT", "end to end")
NOTE = (
    "Queue: until work on the prompt began. Prefill: from there to the first token, with the gateway's own time and "
    "what came from the KV-cache pool. Transfer: until a decode instance had the prompt's KV, with the wait for room "
    "there. Decode: the rest, with what had to be computed again after a loss."
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Parts of each request's time [s], in the order of `PARTS`: [requests] float64 each, nan for a missing part."""

    queue_s: Floats
    prefill_s: Floats
    transfer_s: Floats
    decode_s: Floats

    def of(self, row: int) -> tuple[float, float, float, float]:
        """Parts of one request [s]."""
        every = (self.queue_s, self.prefill_s, self.transfer_s, self.decode_s)
        queue, prefill, transfer, decode = (float(part[row]) for part in every)
        return queue, prefill, transfer, decode


def spans(requests: RequestColumns) -> Spans:
    """Divide each request's time. Without a move of KV there is no transfer, and decode starts at the first token."""
    arrival, first = floats(requests.arrival_s), floats(requests.first_token_s)
    adopted, finish = floats(requests.adopted_s), floats(requests.finish_s)
    queue = floats(requests.queue_s)
    moved = np.where(np.isnan(adopted), first, np.maximum(adopted, first))
    return Spans(queue, first - arrival - queue, np.where(np.isnan(adopted), np.nan, moved - first), finish - moved)


def slowest_charts(requests: RequestColumns, times: Latencies) -> list[BarChart]:
    """Charts of the slowest first tokens and the longest requests, each a bar from its arrival, divided into parts."""
    parts = spans(requests)
    found = []
    for chart_id, title, values, used in (
        ("slow-ttft", "Slowest first tokens", times.ttft_s, 2),
        ("slow-e2e", "Slowest requests", times.e2e_s, 4),
    ):
        rows = _slowest(values, _DRAWN)
        if rows:
            found.append(_bars(chart_id, title, rows, parts, used))
    return found


def slowest_table(requests: RequestColumns, times: Latencies) -> Table:
    """The slowest requests by each latency; the column `slow in` names it."""
    parts = spans(requests)
    heads = columns(
        "no.", "slow in", "arrived at", "prompt", "cached", "output", "TTFT", "TPOT", "end to end", *PARTS, "sent",
        text=("slow in",),
    )  # fmt: skip
    rows = []
    for kind, values in zip(_KINDS, (times.ttft_s, times.tpot_s, times.e2e_s), strict=True):
        for row in _slowest(values, _SHOWN):
            latencies = (times.ttft_s[row], times.tpot_s[row], times.e2e_s[row])
            cells = [
                str(row), kind, numbers.clock(requests.arrival_s[row]), numbers.count(requests.prompt_tokens[row]),
                numbers.count(requests.cached_tokens[row]), numbers.count(requests.output_tokens[row]),
                *(numbers.duration(float(value)) for value in (*latencies, *parts.of(row))),
                numbers.count(requests.attempts[row]),
            ]  # fmt: skip
            rows.append(TableRow(cells, kind=kind))
    return Table(heads, rows, f"{NOTE} Sent: how often to a prefill instance. No.: in order of arrival, from 0.")


def _slowest(values: Floats, most: int) -> list[int]:
    """Rows with the largest values, in descending order; of equal values the earliest."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(-values[known], kind="stable")]
    return [int(row) for row in order[:most]]


def _bars(chart_id: str, title: str, rows: list[int], parts: Spans, used: int) -> BarChart:
    bars = []
    for lane, row in enumerate(rows):
        begin = 0.0
        for key, seconds in enumerate(parts.of(row)[:used]):
            if seconds > 0:
                bars.append(
                    Bar(lane, begin, begin + seconds, key, f"no. {row}: {PARTS[key]} {numbers.duration(seconds)}")
                )
                begin += seconds
    return BarChart(
        id=chart_id,
        title=title,
        note="From the arrival on, by their numbers in the table below.",
        x=Axis(unit="s"),
        lanes=[str(row) for row in rows],
        lane_px=_LANE_PX,
        keys=[Key(name=name, color=color) for name, color in zip(PARTS[:used], _COLORS, strict=False)],
        bars=bars,
    )

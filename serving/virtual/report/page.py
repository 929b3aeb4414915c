"""report.html: the whole result on one self-contained page. The same result gives the same bytes."""

from pathlib import Path

from hardware.cost.loads import PredictedStep
from loadgen.report import numbers
from loadgen.report.fragments import element
from loadgen.report.html import render
from loadgen.report.page import Page, facts, tiles
from loadgen.report.table import filtered_table, html_table
from serving.report_files import write_file
from serving.version import VERSION
from serving.virtual.report import tables
from serving.virtual.report.gantt import layer_chart
from serving.virtual.report.goodput import Slo
from serving.virtual.report.latencies import latencies
from serving.virtual.report.request_charts import distribution_charts
from serving.virtual.report.slowest import slowest_charts, slowest_table
from serving.virtual.report.summary import Summary, summarize
from serving.virtual.report.tiles import summary_tiles
from serving.virtual.report.time_charts import time_charts
from serving.virtual.result import ACCURACY, ENGINE, SimResult

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
        html_table(tables.latency_table(summary)),
    )  # fmt: skip
    page.add(
        "slowest", "Slowest requests", page.draw(slowest_charts(result.requests, times)),
        filtered_table(slowest_table(result.requests, times), "slowest-rows", "latency"), short="Slowest",
    )  # fmt: skip
    page.add("time", "Over time", page.draw(time_charts(result, times, slo)))
    page.add(
        "pools", "Pools and planes", html_table(tables.pool_table(summary)), html_table(tables.plane_table(summary))
    )
    if step_cost is not None:
        page.add(
            "layer", "One decode layer", element("p", _layer_note(step_cost), "soft"),
            page.draw([layer_chart(step_cost)], single=True), html_table(tables.parts_table(step_cost)),
        )  # fmt: skip
    _add_events(page, result, summary)
    page.add("instances", "Instances", html_table(tables.instance_table(result), tall=True))
    page.add("configuration", "Configuration", html_table(tables.config_table(result)))
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
    decisions = tables.decision_table(result)
    page.add(
        "decisions", "Decisions", html_table(tables.count_table(result)),
        filtered_table(decisions, "decision-rows", "decision"),
    )  # fmt: skip
    if result.scaling:
        page.add(
            "scaling", "Scaling", html_table(tables.scaling_sums(result)),
            html_table(tables.scaling_table(result), tall=True),
        )  # fmt: skip
    if result.experts:
        page.add("experts", "Experts", html_table(tables.expert_table(result), tall=True))
    if result.faults:
        page.add(
            "faults", "Faults", html_table(tables.fault_sums(summary)),
            html_table(tables.fault_table(result), tall=True),
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

"""report.html: the whole result on one page that needs nothing else, neither beside it nor from a network.

Plots are drawn here, as SVG inside the page; the template escapes every text. The page's own content security policy
forbids every request. The same result gives the same bytes.
"""

import importlib.resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hardware.cost.loads import StepCost
from serving.sim.report import numbers, tables
from serving.sim.report.gantt import layer_gantt
from serving.sim.report.goodput import Slo
from serving.sim.report.latencies import latencies
from serving.sim.report.plots import PLOT_LEFT, PLOT_RIGHT
from serving.sim.report.request_plots import cdf_plots
from serving.sim.report.result_json import write_file
from serving.sim.report.summary import Summary, summarize
from serving.sim.report.tiles import tiles
from serving.sim.report.time_lines import time_line_plots
from serving.sim.result import SimResult
from serving.version import VERSION


def report_page(
    result: SimResult, slo: Slo | None = None, *, step_cost: StepCost | None = None, summary: Summary | None = None
) -> str:
    """The page.

    Args:
        slo: limits that plots and figures show; None = none.
        step_cost: a decode step whose layer is drawn, typical for the run; None = no such section.
        summary: `summarize(result, slo)`, if the caller has it already.
    Returns: HTML of one file; a million requests make it no larger than a thousand.
    """
    times = latencies(result.requests)
    summary = summary or summarize(result, slo, times=times)
    values: dict[str, Any] = {
        "title": result.name,
        "facts": _facts(result, summary),
        "tiles": tiles(summary),
        "cdfs": [Markup(plot) for plot in cdf_plots(times, slo)],
        "time_lines": [Markup(plot) for plot in time_line_plots(result, times, slo)],
        "plot_left": PLOT_LEFT,
        "plot_right": PLOT_RIGHT,
        "end_s": result.totals.end_s,
        "latency_table": tables.latency_table(summary),
        "pool_table": tables.pool_table(summary),
        "plane_table": tables.plane_table(summary),
        "count_table": tables.count_table(result),
        "decision_table": (decisions := tables.decision_table(result)),
        "kinds": tables.kinds_of(decisions.rows),
        "scaling_sums": tables.scaling_sums(result),
        "scaling_table": tables.scaling_table(result),
        "fault_sums": tables.fault_sums(summary),
        "fault_table": tables.fault_table(result),
        "instance_table": tables.instance_table(result),
        "config_table": tables.config_table(result),
        "gantt": None,
        **_layer(step_cost),
    }
    return _render(values | {"navigation": _navigation(result, step_cost)})


def write_page(
    path: Path,
    result: SimResult,
    slo: Slo | None = None,
    *,
    step_cost: StepCost | None = None,
    summary: Summary | None = None,
) -> None:
    """Write the page to a file.

    Raises: ConfigError if the file cannot be written.
    """
    write_file(path, report_page(result, slo, step_cost=step_cost, summary=summary).encode())


def _render(values: dict[str, Any]) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True)
    template = environment.from_string(_asset("report.html.j2"))
    return template.render(
        css=Markup(_asset("report.css")), script=Markup(_asset("report.js")), version=VERSION, **values
    )


def _asset(name: str) -> str:
    """A file that the page is made of."""
    return (importlib.resources.files("serving.sim.report") / "assets" / name).read_text(encoding="utf-8")


def _facts(result: SimResult, summary: Summary) -> list[tuple[str, str]]:
    """What ran."""
    facts = [
        ("workload", result.workload),
        ("requests", numbers.count(summary.requests)),
        ("lasted", numbers.clock(summary.duration_s)),
        ("seed", str(result.seed)),
    ]
    return facts + ([("supernodes", numbers.count(result.supernodes))] if result.supernodes > 1 else [])


def _layer(cost: StepCost | None) -> dict[str, Any]:
    if cost is None:
        return {}
    overlap = (
        "Two microbatches take turns: while one has the attention stream, the other has the expert stream; the shorter "
        f"stream waits. The attention stream has {numbers.share(cost.cube_split)} of the cube cores."
        if cost.microbatch
        else "Without microbatches the streams follow each other, each with all the cores."
    )
    note = f"{overlap} A whole step lasts {numbers.duration(cost.total_s)}. Point at a bar for its name and time."
    return {"gantt": Markup(layer_gantt(cost)), "gantt_note": note, "parts_table": tables.parts_table(cost)}


def _navigation(result: SimResult, cost: StepCost | None) -> list[tuple[str, str]]:
    """Sections that there are."""
    places = [("latency", "Latency"), ("time", "Over time"), ("pools", "Pools")]
    places += [("layer", "Layer")] if cost else []
    places += [("decisions", "Decisions")]
    places += [("scaling", "Scaling")] if result.scaling else []
    places += [("faults", "Faults")] if result.faults else []
    return [*places, ("instances", "Instances"), ("configuration", "Configuration")]

"""report.html: a run on one page that needs nothing else, neither beside it nor from a network."""

import importlib.resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from serving.chaos.console import downtime, pauses, problems, share
from serving.chaos.findings import FELT_S, PAUSE_S, RESUMED_GAP_S, Findings, KindFindings, Pauses
from serving.chaos.plots import time_line
from serving.chaos.progress import minutes
from serving.chaos.result import ChaosRun
from serving.chaos.scenario import ENGINES
from serving.chaos.schedule import GRAVE
from serving.version import VERSION


def report_page(run: ChaosRun, found: Findings) -> str:
    """The page: HTML of one file. Every text is escaped; it can load nothing."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(_asset("serving.chaos", "report.html.j2"))
    return template.render(
        css=Markup(_asset("serving.sim.report", "report.css")),
        title=f"chaos: {run.scenario}",
        version=VERSION,
        clean=found.clean,
        facts=_facts(run),
        tiles=_tiles(run, found),
        plots=[Markup(plot) for plot in time_line(run)],
        kinds=[_kind_row(kind) for kind in found.kinds],
        events=[_event_row(run, index) for index in range(len(run.events))],
        problems=problems(run, found),
        pause_s=f"{PAUSE_S:g}",
        resumed_gap_s=f"{RESUMED_GAP_S:g}",
        felt_s=f"{FELT_S:g}",
    )


def _asset(package: str, name: str) -> str:
    return (importlib.resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def _facts(run: ChaosRun) -> list[tuple[str, str]]:
    early = " (ended early)" if run.interrupted else ""
    return [
        ("model", run.model),
        ("seed", str(run.seed)),
        ("lasted", f"{minutes(run.duration_s).strip()} of {minutes(run.asked_s).strip()}{early}"),
        ("distinct requests", str(run.references)),
    ]


def _tiles(run: ChaosRun, found: Findings) -> list[dict[str, Any]]:
    none = "no stream stood still"
    return [
        {"name": "requests failed", "figure": f"{found.failed:,}", "line": f"of {found.sent:,} sent"},
        {
            "name": "token-exact",
            "figure": share(found.exact, found.compared),
            "line": f"{found.exact:,} of {found.compared:,} compared",
        },
        {
            "name": "fault to next token",
            "figure": f"{found.resumed.p50_s:.2f} s" if found.resumed.p50_s is not None else "-",
            "line": f"median; {pauses(found.resumed)}" if found.resumed.count else none,
        },
        {
            "name": "longest time not ready",
            "figure": f"{found.longest_down_s:.1f} s",
            "line": f"{downtime(found)}; {run.most_down_s:g} s are allowed",
        },
        {"name": "leaks", "figure": str(len(found.leaks)), "line": "counts, segments, processes, pool"},
        {"name": "faults", "figure": str(found.hits), "line": f"{found.not_replaced} not replaced"},
        {
            "name": "cancelled by us",
            "figure": f"{found.cancelled:,}",
            "line": f"{found.finished:,} finished, {found.tokens:,} tokens",
        },
    ]


def _kind_row(kind: KindFindings) -> list[str]:
    hurt = kind.kind in GRAVE
    streams = hurt and kind.pool in ENGINES
    return [
        kind.kind.replace("_", " "),
        kind.pool or "-",
        str(kind.events - kind.skipped),
        str(kind.skipped),
        str(kind.replaced) if hurt else "-",
        str(kind.survived) if hurt else "-",
        _times(kind.replacement) if hurt else "-",
        str(kind.resumed.count) if streams else "-",
        _times(kind.resumed) if streams else "-",
    ]


def _event_row(run: ChaosRun, index: int) -> list[str]:
    event = run.events[index]
    return [
        minutes(event.at_s).strip(),
        event.kind.replace("_", " "),
        event.target or "-",
        f"{event.lasts_s:.1f} s" if event.lasts_s else "-",
        event.fate,
        f"{event.replaced_s:.1f} s" if event.replaced_s is not None else "-",
    ]


def _times(found: Pauses) -> str:
    return f"{found.p50_s:.2f} / {found.p99_s:.2f} / {found.max_s:.2f} s" if found.count else "-"

"""report.html: a run on one self-contained page."""

from loadgen.report import numbers
from loadgen.report.fragments import Html, element, tile
from loadgen.report.html import render
from loadgen.report.page import Page, facts, tiles
from loadgen.report.table import columns, html_table, table_of
from serving.tools.chaos.charts import time_line
from serving.tools.chaos.console import problems
from serving.tools.chaos.findings import FELT_S, PAUSE_S, RESUMED_GAP_S, ChaosFindings
from serving.tools.chaos.hit_stream import drawn_stream, stream_chart, told
from serving.tools.chaos.result import ChaosRun
from serving.tools.chaos.tables import beside_floods, downtime, event_table, kind_table, pauses, share
from serving.version import VERSION

_FOOTNOTE = (
    "Every response was compared, token by token, with two responses to the same request before the first fault."
)
_STOPPED = (
    f"The loss of an instance has stopped a stream if it got no token for more than {RESUMED_GAP_S:g} s, in a gap that "
    f"began within {FELT_S:g} s of the fault, and the system reports that the request continued on another "
    f"instance; or for more than {PAUSE_S:g} s, whatever it reports: then the instance was frozen for a moment, "
    "or the machine was busy, which counts against the system, too."
)


def report_page(run: ChaosRun, found: ChaosFindings) -> str:
    """The page: HTML of one file. Every text is escaped; it loads no resource."""
    page = Page(f"chaos: {run.scenario}", footnote=_FOOTNOTE)
    page.body += [element("h1", page.title), facts(_facts(run)), _verdict(found), tiles(_tiles(run, found))]
    wrong = table_of(columns("", long=("",)), [[line] for line in problems(run, found)])
    page.add("problems", "What is wrong", html_table(wrong, tall=True))
    stream = drawn_stream(run)
    if stream is not None:
        page.add(
            "stream",
            "One stream across its loss",
            element("p", told(stream)),
            page.draw([stream_chart(stream)]),
            short="One stream",
        )
    note = (
        "Upright lines are moments at which instances were lost. Bars have the numbers of their faults; the table of "
        "every fault shows its result."
    )
    page.add("time", "Over time", element("p", note, "soft"), page.draw(time_line(run), single=True))
    page.add("kinds", "Faults by kind and pool", html_table(kind_table(found)), element("p", _STOPPED, "soft"))
    page.add("events", "Every fault", html_table(event_table(run), tall=True))
    return render(page, f"cloudmatrix {VERSION}")


def _verdict(found: ChaosFindings) -> Html:
    if found.clean:
        return element("p", "Nothing lost, nothing different, nothing left behind", "lead good")
    return element("p", "Not clean", "lead bad")


def _facts(run: ChaosRun) -> list[tuple[str, object]]:
    early = " (ended early)" if run.interrupted else ""
    return [
        ("model", run.model),
        ("seed", run.seed),
        ("lasted", f"{numbers.clock(run.duration_s)} of {numbers.clock(run.asked_s)}{early}"),
        ("distinct requests", numbers.count(run.references)),
    ]


def _tiles(run: ChaosRun, found: ChaosFindings) -> list[Html]:
    pause, _, unit = numbers.duration(found.resumed.p50_s).partition(" ")
    down, _, down_unit = numbers.duration(found.longest_down_s).partition(" ")
    waited = f"median; {pauses(found.resumed)}" if found.resumed.count else "no stream stood still"
    allowed = f"{downtime(found)}; {numbers.limit(run.most_down_s)} are allowed"
    finished = f"{found.finished:,} finished, {found.tokens:,} tokens"
    exact = f"{found.exact:,} of {found.compared:,} compared"
    return [
        tile("requests failed", numbers.count(found.failed), "", [f"of {found.sent:,} sent"]),
        tile("token-exact", share(found.exact, found.compared), "", [exact]),
        tile("fault to next token", pause, unit, [waited]),
        tile("longest time not ready", down, down_unit, [allowed]),
        tile("leaks", numbers.count(len(found.leaks)), "", ["counts, segments, processes, pool"]),
        tile("faults", numbers.count(found.hits), "", [f"{found.not_replaced:,} not replaced"]),
        *_flood_tile(found),
        tile("cancelled by us", numbers.count(found.cancelled), "", [finished]),
    ]


def _flood_tile(found: ChaosFindings) -> list[Html]:
    if not found.beside_floods:
        return []
    first, _, unit = numbers.duration(found.beside_floods[0].beside_p99_s).partition(" ")
    return [tile("first token during a flood", first, unit, [beside_floods(found)])]

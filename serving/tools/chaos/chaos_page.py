"""report.html: a run on one self-contained page."""

import itertools
from collections.abc import Sequence

from loadgen.report import numbers
from loadgen.report.chart import Bar, BarChart, Chart, Key, Line, Marks, TimeAxis
from loadgen.report.fragments import Html, element, tile
from loadgen.report.page import Page, facts, render, tiles
from loadgen.report.palette import POOLS
from loadgen.report.table import columns, html_table, table_of
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.chaos_tables import beside_floods, downtime, event_table, kind_table, pauses, problems, share
from serving.tools.chaos.findings import FELT_S, PAUSE_S, RESUMED_GAP_S, ChaosFindings, pauses_of, stops_streams
from serving.tools.chaos.hit_stream import drawn_stream, stream_chart, stream_text
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
            element("p", stream_text(stream)),
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


# The time line of a run: faults in lanes, and below them the clients' and pools' view, all over the same axis.

_LEAST_BAR_SHARE = 0.003
"""A fault of no duration is drawn this wide, compared with the whole time line."""
_MOST_MARKS = 120
_MOST_NUMBERS = 40
"""Bars with a number behind each; more do not fit."""
_LANE_PX = 28
COLORS = {
    "kill": "red",
    "kill_part": "red",
    "freeze": "blue",
    "bit_flip": "violet",
    "slow_link": "orange",
    "full_disk": "green",
    "cancel_burst": "grey",
    "flood": "violet",
    "memory_server": "red",
    "gateway": "red",
    "node": "red",
}


def time_line(run: ChaosRun) -> list[Chart]:
    """All charts, from top to bottom."""
    end_s = max([run.duration_s, *(sample.at_s for sample in run.samples)], default=1.0) or 1.0
    axis = TimeAxis(end_s, _marks(run.events))
    at = [sample.at_s for sample in run.samples]
    in_flight = Line(
        name="requests", values=[float(sample.in_flight) for sample in run.samples], color="blue", fill=True, steps=True
    )
    rates_at, rates = _rates(run)
    resumed_at, resumed = _resumed(run)
    pools = sorted({pool for sample in run.samples for pool in sample.replicas})
    replicas = [
        Line(
            name=pool, values=[float(sample.replicas.get(pool, 0)) for sample in run.samples],
            color=pool if pool in POOLS else "grey", steps=True,
        )
        for pool in pools
    ]  # fmt: skip
    tokens = Line(name="tokens", values=rates, color="blue", fill=True)
    pause = Line(name="longest time from the fault to the next token", values=resumed, color="blue")
    return [
        lanes(run.events, axis),
        axis.chart("flight", "Requests in flight", at, [in_flight], "count"),
        axis.chart("tokens", "Tokens received per second", rates_at, [tokens], "per_s"),
        TimeAxis(end_s).chart("resumed", "Streams that stood still", resumed_at, [pause], "s"),
        axis.chart("replicas", "Replicas listed", at, replicas, "count"),
    ]


def lanes(events: Sequence[Event], axis: TimeAxis) -> BarChart:
    """Faults as bars in a lane for each pool, as long as they lasted, each with a label."""
    shown = [event for event in events if event.fate != "nobody to hit"]
    pools = sorted({event.pool or "clients" for event in shown})
    kinds = [kind for kind in COLORS if any(event.kind == kind for event in shown)]
    return BarChart(
        id="faults",
        title="Faults",
        x=axis.x,
        lanes=pools,
        lane_px=_LANE_PX,
        keys=[Key(name=kind.replace("_", " "), color=COLORS[kind], alpha=0.7) for kind in kinds],
        bars=[
            Bar(
                pools.index(event.pool or "clients"),
                event.at_s,
                event.at_s + max(_shown_s(event), _LEAST_BAR_SHARE * axis.end_s),
                kinds.index(event.kind),
                f"{event.number}: {event.kind.replace('_', ' ')} {event.target}: {event.fate}",
                after=str(event.number) if len(shown) <= _MOST_NUMBERS else "",
            )
            for event in shown
        ],
        group=axis.group,
    )


def _shown_s(event: Event) -> float:
    return event.replaced_s if event.replaced_s is not None else event.lasts_s


def _marks(events: Sequence[Event]) -> list[Marks]:
    """Times of faults that stop streams, by kind; none if there are too many for readable curves."""
    stopping = [event for event in events if stops_streams(event) and event.fate != "nobody to hit"]
    if len(stopping) > _MOST_MARKS:
        return []
    kinds = [kind for kind in COLORS if any(event.kind == kind for event in stopping)]
    return [
        Marks(
            name=kind.replace("_", " "), color=COLORS[kind],
            xs=sorted(event.at_s for event in stopping if event.kind == kind),
        )
        for kind in kinds
    ]  # fmt: skip


def _rates(run: ChaosRun) -> tuple[list[float], list[float | None]]:
    """Tokens per second between two polls; an interval without a poll keeps its length."""
    pairs = [(a, b) for a, b in itertools.pairwise(run.samples) if b.at_s > a.at_s]
    return [b.at_s for _, b in pairs], [max(0, b.tokens - a.tokens) / (b.at_s - a.at_s) for a, b in pairs]


def _resumed(run: ChaosRun) -> tuple[list[float], list[float | None]]:
    """The longest pause of each fault that stopped streams, as spikes at its time."""
    xs: list[float] = [0.0]
    ys: list[float | None] = [0.0]
    for event in sorted(run.events, key=lambda event: event.at_s):
        pauses = pauses_of(event, run.answers) if stops_streams(event) else []
        if pauses:
            xs += [event.at_s, event.at_s, event.at_s]
            ys += [0.0, max(pauses), 0.0]
    return [*xs, max(run.duration_s, xs[-1])], [*ys, 0.0]

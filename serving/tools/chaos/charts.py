"""The time line of a run: faults in lanes, and below them the clients' and pools' view, all over the same axis."""

import itertools
from collections.abc import Sequence

from loadgen.report.chart import Bar, BarChart, Chart, Key, Line, Marks
from loadgen.report.palette import POOLS
from loadgen.report.time_axis import TimeAxis
from serving.tools.chaos.findings import pauses_of, stops_streams
from serving.tools.chaos.result import ChaosRun, Event

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
    hurt = [event for event in events if stops_streams(event) and event.fate != "nobody to hit"]
    if len(hurt) > _MOST_MARKS:
        return []
    kinds = [kind for kind in COLORS if any(event.kind == kind for event in hurt)]
    return [
        Marks(
            name=kind.replace("_", " "), color=COLORS[kind],
            xs=sorted(event.at_s for event in hurt if event.kind == kind),
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

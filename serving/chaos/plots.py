"""The time line of a run: faults in lanes, and under them what clients and pools saw, all over the same axis."""

import itertools
from collections.abc import Sequence

from serving.chaos.findings import pauses_of, stops_streams
from serving.chaos.result import ChaosRun, Event
from serving.sim.report import axis
from serving.sim.report.plots import AxisOf, Mark, Series, lines
from serving.sim.report.svg import PALETTE, empty, legend, panel, style, to_svg

WIDTH = 1120
_LEFT_PX, _RIGHT_PX = 54, 28
_LANE_PX = 26
_LEAST_BAR_SHARE = 0.002
"""A fault of no duration is drawn this wide, compared with the whole time line."""
_MOST_MARKS = 120
_RESUMED = "Streams that stood still: longest time from the fault to the next token [s]"
COLORS = {
    "kill": "red",
    "kill_part": "red",
    "freeze": "blue",
    "bit_flip": "violet",
    "slow_link": "orange",
    "full_disk": "green",
    "cancel_burst": "grey",
}
_POOL_COLORS = {"prefill": "blue", "decode": "violet", "aggregated": "violet", "kvcache": "green"}


def time_line(run: ChaosRun) -> list[str]:
    """All plots, as SVG, from above."""
    end_s = max([run.duration_s, *(sample.at_s for sample in run.samples)], default=1.0) or 1.0
    x = AxisOf("clock", low=0.0, high=end_s)
    hurt = [event for event in run.events if stops_streams(event)]
    marks = [Mark(event.at_s, COLORS[event.kind]) for event in hurt] if len(hurt) <= _MOST_MARKS else []
    rates_at, rates = _rates(run)
    samples = run.samples
    resumed_at, resumed = _resumed(run)
    return [
        lanes(run.events, end_s),
        _plot("flight", "Requests in flight", [s.at_s for s in samples], [s.in_flight for s in samples], x, marks),
        _plot("tokens", "Tokens received per second", rates_at, rates, x, marks),
        _plot("resumed", _RESUMED, resumed_at, resumed, x, ()),
        lines(
            "replicas",
            "Replicas listed",
            [
                Series(pool, [s.at_s for s in samples], [s.replicas.get(pool, 0) for s in samples],
                       _POOL_COLORS.get(pool, "grey"), steps=True)
                for pool in sorted({pool for sample in samples for pool in sample.replicas})
            ],
            x=x, y=AxisOf("count", low=0.0), marks=marks, width=WIDTH, height=150,
        ),
    ]  # fmt: skip


def _plot(name: str, title: str, xs: Sequence[float], ys: Sequence[float], x: AxisOf, marks: Sequence[Mark]) -> str:
    series = [Series(name, xs, ys, "blue", filled=name != "resumed", steps=name == "flight")]
    return lines(name, title, series, x=x, y=AxisOf("count", low=0.0), marks=marks, width=WIDTH, height=150)


def lanes(events: Sequence[Event], end_s: float) -> str:
    """Faults as bars in a lane for each pool, as long as they lasted; point at one for what it was."""
    pools = sorted({event.pool or "clients" for event in events if event.fate != "nobody to hit"})
    with style():
        title = "Faults"
        height = 86 + _LANE_PX * max(1, len(pools))
        figure, axes = panel(WIDTH, height, title, left=_LEFT_PX, right=_RIGHT_PX)
        if not pools:
            empty(axes)
            return to_svg(figure, "faults", title)
        tooltips: dict[str, str] = {}
        named: set[str] = set()
        for event in events:
            if event.fate == "nobody to hit":
                continue
            lane, color = pools.index(event.pool or "clients"), PALETTE[COLORS[event.kind]]
            shown = event.replaced_s if event.replaced_s is not None else event.lasts_s
            group = f"fault{event.number}"
            axes.barh([lane], [max(shown, _LEAST_BAR_SHARE * end_s)], 0.6, left=[event.at_s], color=color, alpha=0.35)
            axes.plot(
                [event.at_s], [lane], "o", color=color, markersize=5, gid=group,
                label="" if event.kind in named else event.kind.replace("_", " "),
            )  # fmt: skip
            named.add(event.kind)
            tooltips[group] = f"{event.kind} {event.target}: {event.fate}"
        axes.set_yticks(range(len(pools)), pools)
        axes.set_ylim(len(pools) - 0.5, -0.5)
        axes.set_xlim(0, end_s)
        axes.grid(visible=False, axis="y")
        axis.format_axis(axes.xaxis, "clock", ticks=7)
        legend(figure, axes)
        return to_svg(figure, "faults", title, tooltips)


def _rates(run: ChaosRun) -> tuple[list[float], list[float]]:
    """Tokens per second between two looks; a stretch without a look is as long as it was."""
    pairs = [(a, b) for a, b in itertools.pairwise(run.samples) if b.at_s > a.at_s]
    return [b.at_s for _, b in pairs], [max(0, b.tokens - a.tokens) / (b.at_s - a.at_s) for a, b in pairs]


def _resumed(run: ChaosRun) -> tuple[list[float], list[float]]:
    """The longest pause of each fault that stopped streams, as spikes over its moment."""
    xs: list[float] = [0.0]
    ys: list[float] = [0.0]
    for event in run.events:
        pauses = pauses_of(event, run.answers) if stops_streams(event) else []
        if pauses:
            xs += [event.at_s, event.at_s, event.at_s]
            ys += [0.0, max(pauses), 0.0]
    return [*xs, max(run.duration_s, xs[-1])], [*ys, 0.0]

"""One decode layer as a Gantt chart: attention stream above, expert stream below, two microbatches taking turns.

In the steady state a layer of two microbatches has two halves. In each, one microbatch has the attention stream while
the other has the expert stream; then they change places. A half lasts as long as the longer stream and the hand-over;
the shorter stream waits. Without microbatches the streams follow each other. The parts of `StepCost` are sums over all
their runs; a bar is one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from hardware.cost.loads import CostPart, StepCost
from serving.sim.report import axis, numbers
from serving.sim.report.svg import PALETTE, empty, legend, panel, style, to_svg

STREAMS = ("attention stream", "expert stream")
_WIDTH, _HEIGHT = 1120, 400
_LANE, _GAP = 1.0, 0.28
_LETTER_PX, _LINE_PX = 5.9, 13
_LANE_PX = 135
_COLORS = ("blue", "orange")
_ROUNDING = 1e-9
_ORDER = (0, 1, -1)


@dataclass(frozen=True, slots=True)
class Bar:
    """One run of one operator. `microbatch`: 0 or 1."""

    name: str
    stream: int
    microbatch: int
    start_s: float
    length_s: float


def layer_bars(cost: StepCost) -> list[Bar]:
    """Where each operator of one layer lies in time.

    Returns: bars; those of one stream and microbatch follow each other and add up to `cost.streams_s[stream]`.
    """
    first = (0.0, 0.0 if cost.microbatch else cost.streams_s[0])
    half_s = max(cost.layer_s / 2, *cost.streams_s)
    bars = []
    for stream in (0, 1):
        runs = _runs(cost, stream)
        for turn in range(2 if cost.microbatch else 1):
            at = first[stream] + turn * half_s
            for name, length_s in runs:
                bars.append(Bar(name, stream, (turn + stream) % 2 if cost.microbatch else 0, at, length_s))
                at += length_s
    return bars


def layer_gantt(cost: StepCost, name: str = "gantt") -> str:
    """Draw one layer.

    Args:
        name: unique in its page.
    Returns: an SVG; each bar is a group `<name>-bar-<stream>-<microbatch>-<n>` with its operator and time as tooltip.
    """
    bars = layer_bars(cost)
    title = f"One decode layer: {numbers.duration(cost.layer_s)}"
    with style():
        figure, axes = panel(_WIDTH, _HEIGHT, title, left=126)
        if not bars:
            empty(axes)
            return to_svg(figure, name, title)
        end_s = max(cost.layer_s, *(bar.start_s + bar.length_s for bar in bars))
        axes.set_xlim(0, end_s)
        axes.set_ylim(2 * _LANE + _GAP, -0.06)
        tooltips: dict[str, str] = {}
        counters: dict[tuple[int, int], int] = {}
        for bar in bars:
            key = (bar.stream, bar.microbatch)
            counters[key] = counters.get(key, 0) + 1
            group = f"bar-{bar.stream}-{bar.microbatch}-{counters[key] - 1}"
            _draw(axes, bar, group, odd=counters[key] % 2 == 0, width_px=bar.length_s / end_s * (_WIDTH - 142))
            tooltips[group] = f"{bar.name}: {numbers.duration(bar.length_s)}"
        names = [f"{stream}\n{numbers.duration(cost.streams_s[n])}" for n, stream in enumerate(STREAMS)]
        axes.set_yticks([_middle(0), _middle(1)], names)
        axes.grid(visible=False, axis="y")
        axis.format_axis(axes.xaxis, "seconds", ticks=10)
        _microbatches(axes, cost)
        legend(figure, axes)
        return to_svg(figure, name, title, tooltips)


def layer_parts(cost: StepCost) -> list[CostPart]:
    """Operators of a step by stream, in each those that last longest first; those outside of layers at the end."""
    return sorted(cost.parts, key=lambda part: (part.stream % len(_ORDER), -part.time_s))


def stream_name(stream: int) -> str:
    """What a part's stream number means."""
    return STREAMS[stream].split()[0] if stream in (0, 1) else "outside of layers"


def _runs(cost: StepCost, stream: int) -> list[tuple[str, float]]:
    """One run of each operator of a stream [s], made to add up to the stream's time.

    Operators that do not run in every layer (a dense layer's) are no part of the one that is drawn. What remains of the
    stream's time is a bar of its own; if operators hide inside others, all are shortened alike.
    """
    length_s = cost.streams_s[stream]
    members = [part for part in cost.parts if part.stream == stream and part.runs > 0 and part.time_s > 0]
    most = max((part.runs for part in members), default=0)
    runs = [(part.name, part.time_s / part.runs) for part in members if 2 * part.runs > most]
    whole_s = sum(one_s for _, one_s in runs)
    if whole_s > length_s * (1 + _ROUNDING):
        return [(name, one_s * length_s / whole_s) for name, one_s in runs]
    rest_s = length_s - whole_s
    return [*runs, ("other", rest_s)] if rest_s > length_s * _ROUNDING else runs


def _draw(axes: Axes, bar: Bar, group: str, *, odd: bool, width_px: float) -> None:
    """One bar, with its name where it fits: along, or upwards in a narrow one."""
    top = bar.stream * (_LANE + _GAP)
    axes.add_patch(
        Rectangle(
            (bar.start_s, top), bar.length_s, _LANE, facecolor=PALETTE[_COLORS[bar.microbatch]],
            alpha=0.76 if odd else 0.95, gid=group, edgecolor=PALETTE["card"], linewidth=0.8,
        )
    )  # fmt: skip
    along = _fitting(bar, width_px)
    text, turned = (along, False) if along else (_upright(bar, width_px), True)
    if text:
        axes.text(
            bar.start_s + bar.length_s / 2, _middle(bar.stream), text, ha="center", va="center", fontsize=10,
            color=PALETTE["card"], rotation=90 if turned else 0, linespacing=1.3,
        )  # fmt: skip


def _fitting(bar: Bar, width_px: float) -> str:
    """Name and time under each other, if the bar is wide enough for both."""
    words = [*_wrapped(bar.name, width_px), numbers.duration(bar.length_s)]
    return "\n".join(words) if max(map(len, words)) * _LETTER_PX + 6 < width_px else ""


def _upright(bar: Bar, width_px: float) -> str:
    """Name (and time, if it fits) in a line from bottom to top; nothing in a bar narrower than a line."""
    if width_px < _LINE_PX:
        return ""
    texts = (f"{bar.name}, {numbers.duration(bar.length_s)}", bar.name)
    return next(
        (text for text in texts if len(text) * _LETTER_PX < _LANE_PX), bar.name[: int(_LANE_PX / _LETTER_PX) - 1] + "…"
    )


def _wrapped(text: str, width_px: float) -> Sequence[str]:
    """A name in lines that fit, broken at spaces."""
    lines: list[str] = []
    for word in text.split():
        if lines and (len(lines[-1]) + 1 + len(word)) * _LETTER_PX + 6 < width_px:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _microbatches(axes: Axes, cost: StepCost) -> None:
    """Names of the colours."""
    if cost.microbatch:
        for color, text in zip(_COLORS, ("microbatch A", "microbatch B"), strict=True):
            axes.plot([], [], color=PALETTE[color], linewidth=6, label=text)


def _middle(stream: int) -> float:
    return stream * (_LANE + _GAP) + _LANE / 2

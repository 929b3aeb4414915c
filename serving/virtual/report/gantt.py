"""One decode layer as a Gantt chart: attention stream above, expert stream below, two microbatches taking turns.

In the steady state a layer of two microbatches has two halves. In each half, one microbatch uses the attention stream
while the other uses the expert stream; then they swap. A half lasts as long as the longer stream plus the switch; the
shorter stream waits. Without microbatches the streams run one after the other. The parts of `PredictedStep` are sums
over all their runs; a bar is one run.
"""

from dataclasses import dataclass

from hardware.cost.loads import CostPart, PredictedStep
from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key

_LANE_PX = 150
_NO_BREAK = "\u00a0"
_COLORS = ("blue", "orange")
_ROUNDING = 1e-9
_ORDER = (0, 1, -1)


@dataclass(frozen=True, slots=True)
class LayerBar:
    """One run of one operator. `microbatch`: 0 or 1."""

    name: str
    stream: int
    microbatch: int
    start_s: float
    length_s: float


def layer_bars(cost: PredictedStep) -> list[LayerBar]:
    """Position of each operator of one layer in time.

    Returns: bars; those of one stream and microbatch are consecutive and add up to `cost.streams_s[stream]`.
    """
    first = (0.0, 0.0 if cost.microbatch else cost.streams_s[0])
    half_s = max(cost.layer_s / 2, *cost.streams_s)
    bars = []
    for stream in (0, 1):
        runs = _runs(cost, stream)
        for turn in range(2 if cost.microbatch else 1):
            at = first[stream] + turn * half_s
            for name, length_s in runs:
                bars.append(LayerBar(name, stream, (turn + stream) % 2 if cost.microbatch else 0, at, length_s))
                at += length_s
    return bars


def layer_chart(cost: PredictedStep) -> BarChart:
    """Chart of one layer with two lanes of bars, each labelled with its operator and time."""
    bars = layer_bars(cost)
    end_s = max([cost.layer_s, *(bar.start_s + bar.length_s for bar in bars)])
    names = ("microbatch A", "microbatch B") if cost.microbatch else ("operators",)
    return BarChart(
        id="layer-bars",
        title=f"One decode layer: {numbers.duration(cost.layer_s)}",
        x=Axis(unit="s", low=0.0, high=end_s),
        lanes=[
            f"{stream_name(cost, place)} stream, {numbers.duration(length_s)}"
            for place, length_s in enumerate(cost.streams_s)
        ],
        lane_px=_LANE_PX,
        keys=[Key(name=name, color=color) for name, color in zip(names, _COLORS, strict=False)],
        bars=[_drawn(bar) for bar in bars],
    )


def layer_parts(cost: PredictedStep) -> list[CostPart]:
    """Operators of a step by stream, the longest first; those outside of layers at the end."""
    return sorted(cost.parts, key=lambda part: (part.stream % len(_ORDER), -part.time_s))


def stream_name(cost: PredictedStep, stream: int) -> str:
    """The name of a part's stream."""
    if stream not in (0, 1):
        return "outside of layers"
    return "attention" if stream == 0 else "expert" if cost.has_experts else "feed-forward"


def _runs(cost: PredictedStep, stream: int) -> list[tuple[str, float]]:
    """One run of each operator of a stream [s], made to add up to the stream's time.

    Operators that do not run in every layer (of dense layers) are omitted. The remaining time of the stream is a bar of
    its own; if operators overlap, all are shortened by the same factor.
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


def _drawn(bar: LayerBar) -> Bar:
    """A bar labelled with its name and time; the time is not broken over lines."""
    time = numbers.duration(bar.length_s)
    inside = f"{bar.name} {time.replace(' ', _NO_BREAK)}"
    return Bar(bar.stream, bar.start_s, bar.start_s + bar.length_s, bar.microbatch, f"{bar.name}: {time}", inside)

"""The Gantt chart: bars of a stream never overlap and add up to its time, in values and in what is drawn."""

import dataclasses
import itertools
from collections import defaultdict

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, load_device
from hardware.cost.loads import DecodeLoad, PredictedStep
from hardware.units import Seconds
from serving.virtual.report.gantt import layer_bars, layer_chart, layer_parts
from tests.virtual.report.made import made_step


def variants() -> list[PredictedStep]:
    """With microbatches and without; a stream that is longer than its parts; one that is shorter."""
    step = made_step()
    attention, experts = step.streams_s
    longer = dataclasses.replace(step, streams_s=(attention, Seconds(1.2 * experts)), layer_s=Seconds(2.4 * experts))
    shorter = dataclasses.replace(step, streams_s=(Seconds(0.8 * attention), experts))
    return [step, made_step(microbatch=False), longer, shorter]


@pytest.mark.parametrize("step", variants())
def test_drawn_bars_never_overlap_and_add_up(step: PredictedStep) -> None:
    chart = layer_chart(step)
    streams: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for bar in chart.bars:
        streams[bar.lane].append((bar.start, bar.end))
    for stream, bars in streams.items():
        bars.sort()
        assert all(end <= start + 1e-12 for (_, end), (start, _) in itertools.pairwise(bars))
        turns = 2 if step.microbatch else 1
        assert sum(end - start for start, end in bars) == pytest.approx(turns * step.streams_s[stream])
    assert chart.x.high == pytest.approx(max(bar.end for bar in chart.bars), rel=1e-6)
    assert len(chart.keys) == turns


@pytest.mark.parametrize("step", variants())
def test_each_stream_and_microbatch_takes_the_streams_time_within_the_layer(step: PredictedStep) -> None:
    sums: dict[tuple[int, int], float] = defaultdict(float)
    for bar in layer_bars(step):
        sums[bar.stream, bar.microbatch] += bar.length_s
        assert 0 <= bar.start_s <= bar.start_s + bar.length_s <= step.layer_s * (1 + 1e-9)
    assert len(sums) == (4 if step.microbatch else 2)
    for (stream, _), whole in sums.items():
        assert whole == pytest.approx(step.streams_s[stream])


def test_a_microbatch_is_never_in_both_streams_at_once() -> None:
    bars = layer_bars(made_step())
    for one in bars:
        for other in bars:
            if one.microbatch == other.microbatch and one.stream < other.stream:
                apart = one.start_s + one.length_s <= other.start_s or other.start_s + other.length_s <= one.start_s
                assert apart, (one, other)


def test_bars_and_table_say_what_they_are_and_what_the_parts_do_not_explain() -> None:
    chart = layer_chart(made_step())
    said = [bar.text for bar in chart.bars]
    assert said.count("core attention: 344 µs") == 2
    assert said.count("gate: 12.0 µs") == 2
    assert not any("dense" in text for text in said)  # in no layer that is like the others
    assert chart.lanes[0].startswith("attention stream, ")
    assert chart.bars[0].name.endswith("\u00a0µs")
    assert {bar.name for bar in layer_bars(variants()[2])} - {bar.name for bar in layer_bars(made_step())} == {"other"}
    step = dataclasses.replace(made_step(), parts=())
    assert {bar.name for bar in layer_bars(step)} == {"other"}
    nothing = dataclasses.replace(step, streams_s=(Seconds(0.0), Seconds(0.0)), layer_s=Seconds(0.0))
    assert layer_chart(nothing).bars == []
    parts = layer_parts(made_step())
    assert len(parts) == len(made_step().parts)
    assert [part.stream for part in parts] == [0] * 5 + [1] * 6 + [-1]


@pytest.mark.parametrize("microbatch", [True, False])
@pytest.mark.parametrize("requests", [4, 48])
def test_the_cost_models_layers_are_drawn_as_they_are(requests: int, microbatch: bool) -> None:
    model = CostModel(load_device("ascend-910c"), DEEPSEEK_R1)
    step = model.decode_step(DecodeLoad(requests, requests * 4096, microbatch=microbatch))
    bars = layer_bars(step)
    assert "other" not in {bar.name for bar in bars}
    parts = {part.name: part.time_s / part.runs for part in step.parts}
    for bar in bars:
        assert bar.length_s == pytest.approx(parts[bar.name])
    assert max(bar.start_s + bar.length_s for bar in bars) <= step.layer_s * (1 + 1e-6)

"""The Gantt chart: bars of a stream never overlap and add up to its time, in values and in what is drawn."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET
from collections import defaultdict

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, load_device
from hardware.cost.loads import DecodeLoad, StepCost
from hardware.units import Seconds
from serving.sim.report.gantt import layer_bars, layer_gantt, layer_parts
from tests.sim.report.made import made_step

SVG = "{http://www.w3.org/2000/svg}"

Extent = tuple[float, float]


def extents(svg: str) -> dict[tuple[int, int], list[Extent]]:
    """Left and right end of every drawn bar, by stream and microbatch."""
    found: dict[tuple[int, int], list[Extent]] = defaultdict(list)
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        named = re.fullmatch(r"gantt-bar-(\d)-(\d)-\d+", group.get("id", ""))
        if named:
            path = next(group.iter(f"{SVG}path")).get("d", "")
            xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) [\d.]+", path)]
            found[int(named[1]), int(named[2])].append((min(xs), max(xs)))
    return found


def variants() -> list[StepCost]:
    """With microbatches and without; a stream that is longer than its parts; one that is shorter."""
    step = made_step()
    attention, experts = step.streams_s
    longer = dataclasses.replace(step, streams_s=(attention, Seconds(1.2 * experts)), layer_s=Seconds(2.4 * experts))
    shorter = dataclasses.replace(step, streams_s=(Seconds(0.8 * attention), experts))
    return [step, made_step(microbatch=False), longer, shorter]


@pytest.mark.parametrize("step", variants())
def test_drawn_bars_never_overlap_and_add_up(step: StepCost) -> None:
    drawn = extents(layer_gantt(step))
    streams: dict[int, list[Extent]] = defaultdict(list)
    for (stream, _), bars in drawn.items():
        streams[stream] += bars
    px_per_s = (max(end for bars in drawn.values() for _, end in bars) - 126) / step.layer_s
    for stream, bars in streams.items():
        bars.sort()
        assert all(end <= start + 1e-3 for (_, end), (start, _) in itertools.pairwise(bars))
        turns = 2 if step.microbatch else 1
        whole = sum(end - start for start, end in bars)
        assert whole / px_per_s == pytest.approx(turns * step.streams_s[stream], rel=5e-3)


@pytest.mark.parametrize("step", variants())
def test_each_stream_and_microbatch_takes_the_streams_time_within_the_layer(step: StepCost) -> None:
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


def test_bars_say_what_they_are() -> None:
    svg = layer_gantt(made_step())
    titles = [title.text for title in ET.fromstring(svg).iter(f"{SVG}title")]
    assert titles.count("core attention: 344 µs") == 2
    assert titles.count("gate: 12 µs") == 2  # too narrow for a name
    assert not any("dense" in str(title) for title in titles)  # in no layer that is like the others


def test_what_the_parts_do_not_explain_is_shown() -> None:
    assert {bar.name for bar in layer_bars(variants()[2])} - {bar.name for bar in layer_bars(made_step())} == {"other"}


def test_a_step_without_parts_is_drawn() -> None:
    step = dataclasses.replace(made_step(), parts=())
    assert {bar.name for bar in layer_bars(step)} == {"other"}
    nothing = dataclasses.replace(step, streams_s=(Seconds(0.0), Seconds(0.0)), layer_s=Seconds(0.0))
    assert "nothing to show" in layer_gantt(nothing)


def test_the_table_has_every_part() -> None:
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

"""The decode and prefill benches against the cost model that they run on."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.cost.published import prefill_load
from serving.tools.paper.decode_bench import DecodeCase, measure_decode
from serving.tools.paper.experiment import Setting
from serving.tools.paper.prefill_bench import PrefillCase, measure_prefill
from serving.tools.paper.ub_fabric import FAMILIES, FIGURE_24_NODE_NPUS, MEANS, SizeFamily, _place, allocation_rate


@pytest.mark.parametrize(("batch", "prompt", "output"), [(8, 4096, 256), (96, 4096, 256), (64, 1024, 1024)])
def test_full_decode_batches_take_what_the_formula_says(setting: Setting, batch: int, prompt: int, output: int) -> None:
    found = measure_decode(setting.cost, DecodeCase(batch, prompt, output, sampled_dies=16))
    assert found.tpot_s == pytest.approx(setting.cost.tpot_s(batch, prompt + output / 2), rel=0.015)
    assert found.tokens_per_s == pytest.approx(batch / found.tpot_s)
    assert found.tokens_per_step == pytest.approx(1.7, rel=0.02)


def test_decode_batches_and_samples(setting: Setting) -> None:
    found = measure_decode(setting.cost, DecodeCase(24, 2048, 64, drafts=0, sampled_dies=8))
    assert found.tokens_per_step == pytest.approx(1.0, rel=0.02)
    few, many = (measure_decode(setting.cost, DecodeCase(16, 4096, 128, sampled_dies=dies)) for dies in (16, 160))
    assert few.tpot_s == pytest.approx(many.tpot_s, rel=0.01)
    larger = [measure_decode(setting.cost, DecodeCase(batch, 4096, 64, sampled_dies=8)) for batch in (16, 48, 96)]
    assert [one.tpot_s for one in larger] == sorted(one.tpot_s for one in larger)
    assert [one.tokens_per_s for one in larger] == sorted(one.tokens_per_s for one in larger)


@pytest.mark.parametrize("perfect", [True, False])
def test_full_prefill_steps_take_what_the_formula_says(setting: Setting, perfect: bool) -> None:
    step_s = setting.cost.prefill_step_s(prefill_load(4096, perfect=perfect))
    found = measure_prefill(setting.cost, PrefillCase(imbalance=1.0 if perfect else None, batches=2))
    assert found.ttft_s == pytest.approx(step_s, rel=0.01)
    assert found.tokens_per_s == pytest.approx(16_384 / step_s, rel=0.01)
    assert found.pulled_share == 0


def test_reuse_saves_time_and_loads_share_the_link(setting: Setting) -> None:
    found = [measure_prefill(setting.cost, PrefillCase(cached_blocks=blocks, batches=1)) for blocks in (0, 8, 16, 29)]
    assert [one.pulled_share for one in found] == [0, 0.25, 0.5, 29 / 32]
    assert [one.ttft_s for one in found] == sorted((one.ttft_s for one in found), reverse=True)
    case = PrefillCase(cached_blocks=16, gb_per_s=1.0, batches=1)
    without_load_s = measure_prefill(setting.cost, PrefillCase(cached_blocks=16, gb_per_s=1e6, batches=1)).ttft_s
    nbytes = setting.cost.kv_bytes(case.reuse * case.tokens_per_npu)
    assert measure_prefill(setting.cost, case).ttft_s - without_load_s == pytest.approx(nbytes / 1e9, rel=1e-3)


def test_loading_ahead_hides_loads_where_there_is_room(setting: Setting) -> None:
    apart, cramped, ahead = (
        measure_prefill(
            setting.cost, PrefillCase(cached_blocks=16, overlap=overlap, batches=6, room_batches=room)
        ).tokens_per_s
        for overlap, room in ((False, 2), (True, 1), (True, 3))
    )
    assert ahead > 1.05 * apart
    assert cramped == pytest.approx(apart, rel=0.03)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("mean", MEANS)
def test_families_have_the_published_mean(family: SizeFamily, mean: float) -> None:
    probabilities = family.probabilities(mean)
    assert sum(probabilities) == pytest.approx(1)
    assert sum(p * size for p, size in zip(probabilities, family.sizes, strict=True)) == pytest.approx(mean)


def test_blocks_fill_what_they_divide() -> None:
    assert allocation_rate(64, [1], [1.0], 500, random.Random(0)) == pytest.approx(1.0)
    assert allocation_rate(64, [5], [1.0], 500, random.Random(0)) == pytest.approx(5 / 8)
    rate = allocation_rate(16, [8, 64], [0.5, 0.5], 300, random.Random(1))
    assert rate == pytest.approx(1.0)
    family = FAMILIES[0]
    weights = family.probabilities(MEANS[0])
    small, large = (allocation_rate(npus, family.sizes, weights, 4000, random.Random(2)) for npus in (160, 384))
    assert large > small


@given(st.lists(st.integers(0, FIGURE_24_NODE_NPUS), min_size=1, max_size=12), st.integers(1, 64))
@settings(max_examples=200)
def test_a_place_has_the_size_and_is_free(free: list[int], size: int) -> None:
    place = _place(free, size)
    if place is None:
        return
    assert sum(count for _, count in place) == size
    assert len({node for node, _ in place}) == len(place)
    assert all(0 < count <= free[node] for node, count in place)
    assert len(place) == -(-size // FIGURE_24_NODE_NPUS)

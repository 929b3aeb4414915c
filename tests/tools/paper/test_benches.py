"""The decode and prefill benches against the cost model that they run on."""

import pytest

from hardware.cost.published import prefill_load
from serving.tools.paper.decode_bench import DecodeCase, measure_decode
from serving.tools.paper.prefill_bench import PrefillCase, measure_prefill
from serving.tools.paper.setting import Setting


@pytest.mark.parametrize(("batch", "prompt", "output"), [(8, 4096, 256), (96, 4096, 256), (64, 1024, 1024)])
def test_full_decode_batches_take_what_the_formula_says(setting: Setting, batch: int, prompt: int, output: int) -> None:
    found = measure_decode(setting.cost, DecodeCase(batch, prompt, output, sampled_dies=16))
    assert found.tpot_s == pytest.approx(setting.cost.tpot_s(batch, prompt + output / 2), rel=0.015)
    assert found.tokens_per_s == pytest.approx(batch / found.tpot_s)
    assert found.tokens_per_step == pytest.approx(1.7, rel=0.02)


def test_without_drafts_a_step_gives_one_token(setting: Setting) -> None:
    found = measure_decode(setting.cost, DecodeCase(24, 2048, 64, drafts=0, sampled_dies=8))
    assert found.tokens_per_step == pytest.approx(1.0, rel=0.02)


def test_a_sample_of_the_dies_stands_for_all(setting: Setting) -> None:
    few, many = (measure_decode(setting.cost, DecodeCase(16, 4096, 128, sampled_dies=dies)) for dies in (16, 160))
    assert few.tpot_s == pytest.approx(many.tpot_s, rel=0.01)


def test_larger_batches_are_slower_and_give_more(setting: Setting) -> None:
    found = [measure_decode(setting.cost, DecodeCase(batch, 4096, 64, sampled_dies=8)) for batch in (16, 48, 96)]
    assert [one.tpot_s for one in found] == sorted(one.tpot_s for one in found)
    assert [one.tokens_per_s for one in found] == sorted(one.tokens_per_s for one in found)


@pytest.mark.parametrize("perfect", [True, False])
def test_full_prefill_steps_take_what_the_formula_says(setting: Setting, perfect: bool) -> None:
    step_s = setting.cost.prefill_step_s(prefill_load(4096, perfect=perfect))
    found = measure_prefill(setting.cost, PrefillCase(perfect_balance=perfect, batches=2))
    assert found.ttft_s == pytest.approx(step_s, rel=0.01)
    assert found.tokens_per_s == pytest.approx(16_384 / step_s, rel=0.01)
    assert found.pulled_share == 0


def test_reuse_is_pulled_and_saves_time(setting: Setting) -> None:
    found = [measure_prefill(setting.cost, PrefillCase(cached_blocks=blocks, batches=1)) for blocks in (0, 8, 16, 29)]
    assert [one.pulled_share for one in found] == [0, 0.25, 0.5, 29 / 32]
    assert [one.ttft_s for one in found] == sorted((one.ttft_s for one in found), reverse=True)


def test_loads_share_the_link(setting: Setting) -> None:
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

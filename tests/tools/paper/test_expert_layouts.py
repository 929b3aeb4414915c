"""Experts' load as drawn, and the best ratio of attention to expert dies."""

import pytest

from hardware.cost.published import RowKind
from serving.tools.paper.experiment import Setting
from serving.tools.paper.expert_layouts import apart_gain, closed_ratio, drawn_imbalance, run_waits, searched_ratio


def test_a_balanced_map_and_more_prompts_even_out_the_busiest_rank() -> None:
    opening, balanced = (drawn_imbalance(32, 1, 0, balanced=on) for on in (False, True))
    assert 1 < balanced < 1.3 < opening
    assert drawn_imbalance(32, 4, 0) < balanced
    few, many = (drawn_imbalance(32, 1, 0, spread=4.5 / prompts**0.5) for prompts in (64, 4096))
    assert few > 1.5 > many
    assert drawn_imbalance(32, 1, 3) != balanced == drawn_imbalance(32, 1, 0)


def test_other_draws_predict_the_mean_combine_as_well() -> None:
    for seed in (3, 9):
        (row,) = (row for row in run_waits(Setting(seed=seed)).rows if row.key == "combine")
        assert row.ours == pytest.approx(312, rel=0.05)
        assert row.kind is RowKind.PREDICTED


def test_longer_contexts_need_more_attention_and_small_instances_lose_most(setting: Setting) -> None:
    ratios = [searched_ratio(setting.cost, context) for context in (1024, 4096, 16_384)]
    assert ratios == sorted(ratios)
    assert closed_ratio(setting.cost, 4096) == pytest.approx(ratios[1], rel=0.1)
    assert apart_gain(setting.cost, 128, 128) < apart_gain(setting.cost, 768, 288)

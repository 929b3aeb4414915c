"""Adaptive scale search: eq. 3."""

import pytest
import torch

from serving.tools.quantize.smoothing import (
    STRENGTHS,
    Consumer,
    Realise,
    fold_error,
    powers_of_two,
    search_scale,
    smoothing_scale,
    spread,
)
from tests.tools.quantize.matrices import weight_and_inputs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("realise", [torch.clone, powers_of_two])
def test_never_worse_than_no_fold_and_than_any_fixed_strength(seed: int, realise: Realise) -> None:
    consumer = Consumer(*weight_and_inputs(seed, tokens=200))
    found = fold_error([consumer], search_scale([consumer], realise))
    assert found <= fold_error([consumer], torch.ones(64))
    for strength in STRENGTHS:
        fixed = smoothing_scale(consumer.inputs.abs().amax(0), consumer.weight.abs().amax(0), strength)
        assert found <= fold_error([consumer], realise(fixed))


def test_outliers_are_worth_a_fold() -> None:
    consumer = Consumer(*weight_and_inputs())
    assert fold_error([consumer], search_scale([consumer], torch.clone)) < 0.5 * fold_error([consumer], torch.ones(64))


def test_even_channels_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    consumer = Consumer(torch.randn(32, 64, generator=generator), torch.randn(100, 64, generator=generator))
    assert fold_error([consumer], search_scale([consumer], torch.clone)) <= fold_error([consumer], torch.ones(64))


def test_scales_follow_the_ranges_and_spare_dead_channels() -> None:
    inputs_range = torch.tensor([100.0, 1.0, 0.0, 1e-9, 3.0])
    scale = smoothing_scale(inputs_range, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]), 0.5)
    assert scale[2] == scale[4] == 1
    assert scale.log2().abs().max() <= 8
    assert scale[0] > scale[1] > scale[3]
    rounded = powers_of_two(scale).log2()
    assert torch.equal(rounded, rounded.round())
    assert (rounded - scale.log2()).abs().max() <= 0.5


def test_without_the_search_the_range_is_shared_evenly() -> None:
    consumer = Consumer(*weight_and_inputs())
    fixed = smoothing_scale(consumer.inputs.abs().amax(0), consumer.weight.abs().amax(0), 0.5)
    assert torch.equal(search_scale([consumer], torch.clone, search=False), fixed)


def test_without_inputs_nothing_is_folded() -> None:
    weight, _ = weight_and_inputs()
    assert search_scale([Consumer(weight, torch.zeros(0, 64))], torch.clone).eq(1).all()


def test_spread_takes_rows_from_everywhere() -> None:
    rows = torch.arange(100).unsqueeze(1)
    assert spread(rows, 4).flatten().tolist() == [0, 25, 50, 75]
    assert spread(rows, 1000) is rows

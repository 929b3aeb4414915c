"""Adaptive scale search: eq. 3."""

import pytest
import torch

from serving.model.linear import Int8Linear
from serving.tools.quantize.folding import (
    RATIOS,
    STRENGTHS,
    Consumer,
    Realise,
    clipped_range,
    clipping_error,
    fold_error,
    powers_of_two,
    search_scale,
    smoothing_scale,
    spread,
)
from serving.tools.quantize.rounding import CalibrationInt8, channel_range, dequantised, round_weight, rounded_tokens
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


def test_outliers_are_folded_and_clipped() -> None:
    consumer = Consumer(*weight_and_inputs())
    assert fold_error([consumer], search_scale([consumer], torch.clone)) < 0.5 * fold_error([consumer], torch.ones(64))
    weight, inputs = weight_and_inputs()
    weight[0, 1] = 3.0
    inputs[:, 1] *= 1e-3
    assert clipped_range(weight, inputs)[0] < 3.0
    weight = torch.tensor([[1.0, -4.0, 0.5]])
    assert dequantised(round_weight(weight, torch.tensor([2.0]))).tolist()[0][1] == -2.0


def test_nothing_is_done_where_nothing_is_known() -> None:
    generator = torch.Generator().manual_seed(1)
    consumer = Consumer(torch.randn(32, 64, generator=generator), torch.randn(100, 64, generator=generator))
    assert fold_error([consumer], search_scale([consumer], torch.clone)) <= fold_error([consumer], torch.ones(64))
    consumer = Consumer(*weight_and_inputs())
    fixed = smoothing_scale(consumer.inputs.abs().amax(0), consumer.weight.abs().amax(0), 0.5)
    assert torch.equal(search_scale([consumer], torch.clone, search=False), fixed)
    weight, _ = weight_and_inputs()
    assert search_scale([Consumer(weight, torch.zeros(0, 64))], torch.clone).eq(1).all()
    weight, _ = weight_and_inputs()
    assert torch.equal(clipped_range(weight, torch.zeros(0, 64)), channel_range(weight))
    zeros = torch.zeros(2, 8)
    assert dequantised(round_weight(zeros, channel_range(zeros))).eq(0).all()
    assert rounded_tokens(zeros).eq(0).all()


def test_scales_follow_the_ranges_and_spare_dead_channels() -> None:
    inputs_range = torch.tensor([100.0, 1.0, 0.0, 1e-9, 3.0])
    scale = smoothing_scale(inputs_range, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]), 0.5)
    assert scale[2] == scale[4] == 1
    assert scale.log2().abs().max() <= 8
    assert scale[0] > scale[1] > scale[3]
    rounded = powers_of_two(scale).log2()
    assert torch.equal(rounded, rounded.round())
    assert (rounded - scale.log2()).abs().max() <= 0.5


def test_spread_takes_rows_from_everywhere() -> None:
    rows = torch.arange(100).unsqueeze(1)
    assert spread(rows, 4).flatten().tolist() == [0, 25, 50, 75]
    assert spread(rows, 1000) is rows


@pytest.mark.parametrize("seed", range(4))
def test_no_channel_is_worse_than_unclipped_or_than_any_ratio(seed: int) -> None:
    weight, inputs = weight_and_inputs(seed, tokens=300)
    found = clipping_error(weight, clipped_range(weight, inputs), inputs)
    for ratio in (1.0, *RATIOS):
        assert (found <= clipping_error(weight, channel_range(weight) * ratio, inputs)).all()


def test_weights_are_at_most_half_a_level_off() -> None:
    weight, _ = weight_and_inputs()
    rounded = round_weight(weight, channel_range(weight))
    assert rounded.weight.dtype == torch.int8
    assert rounded.weight.abs().amax(1).eq(127).all()
    assert ((dequantised(rounded) - weight).abs() <= rounded.scale.unsqueeze(1) * 0.5001).all()


def test_calibration_computes_what_serving_does() -> None:
    weight, inputs = weight_and_inputs()
    rounded = round_weight(weight, channel_range(weight))
    bias = torch.linspace(-1, 1, 48)
    served = Int8Linear(rounded.weight, rounded.scale, bias)(inputs)
    torch.testing.assert_close(CalibrationInt8(rounded, bias)(inputs), served, rtol=1e-5, atol=1e-5)

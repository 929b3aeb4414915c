"""INT8 rounding of weights and activations, against serving's own."""

import torch

from serving.model.int8_linear import Int8Linear
from serving.tools.quantize.rounding import CalibrationInt8, channel_range, dequantised, round_weight, rounded_tokens
from tests.tools.quantize.matrices import weight_and_inputs


def test_weights_are_at_most_half_a_level_off() -> None:
    weight, _ = weight_and_inputs()
    rounded = round_weight(weight, channel_range(weight))
    assert rounded.weight.dtype == torch.int8
    assert rounded.weight.abs().amax(1).eq(127).all()
    assert ((dequantised(rounded) - weight).abs() <= rounded.scale.unsqueeze(1) * 0.5001).all()


def test_a_narrower_range_clips() -> None:
    weight = torch.tensor([[1.0, -4.0, 0.5]])
    assert dequantised(round_weight(weight, torch.tensor([2.0]))).tolist()[0][1] == -2.0


def test_rows_of_zeros_stay_zeros() -> None:
    zeros = torch.zeros(2, 8)
    assert dequantised(round_weight(zeros, channel_range(zeros))).eq(0).all()
    assert rounded_tokens(zeros).eq(0).all()


def test_calibration_computes_what_serving_does() -> None:
    weight, inputs = weight_and_inputs()
    rounded = round_weight(weight, channel_range(weight))
    bias = torch.linspace(-1, 1, 48)
    served = Int8Linear(rounded.weight, rounded.scale, bias)(inputs)
    torch.testing.assert_close(CalibrationInt8(rounded, bias)(inputs), served, rtol=1e-5, atol=1e-5)

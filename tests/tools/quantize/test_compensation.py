"""Error compensation (GPTQ)."""

import pytest
import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.checkpoint import Int8Weight
from serving.tools.quantize.rounding import (
    channel_range,
    compensated,
    compensated_best,
    dequantised,
    inverse_factor,
    round_weight,
    weighted_error,
)
from tests.tools.quantize.matrices import weight_and_inputs


def output_error(weight: Tensor, rounded: Int8Weight, inputs: Tensor) -> float:
    return float((inputs @ (dequantised(rounded) - weight).T).square().sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("columns", [64, 300])
def test_lowers_the_output_error_on_inputs_that_it_has_not_seen(seed: int, columns: int) -> None:
    weight, inputs = weight_and_inputs(seed, columns=columns, tokens=2000)
    limit = channel_range(weight)
    seen, unseen = inputs[:1500], inputs[1500:]
    plain, better = round_weight(weight, limit), compensated(weight, limit, seen)
    assert output_error(weight, better, seen) < 0.6 * output_error(weight, plain, seen)
    assert output_error(weight, better, unseen) < 0.7 * output_error(weight, plain, unseen)


def test_scales_stay_and_no_row_is_worse() -> None:
    weight, inputs = weight_and_inputs()
    limit = channel_range(weight) * 0.9
    found = compensated(weight, limit, inputs)
    assert torch.equal(found.scale, limit / 127)
    assert found.weight.abs().max() <= 127
    weight, inputs = weight_and_inputs(tokens=20)  # fewer rows than columns: most directions are unknown
    limit = channel_range(weight)
    hessian = inputs.T @ inputs / 20
    plain = weighted_error(weight, round_weight(weight, limit), hessian)
    assert (weighted_error(weight, compensated(weight, limit, inputs), hessian) <= plain).all()


def test_without_inputs_or_with_dead_ones_rounding_is_plain() -> None:
    weight, inputs = weight_and_inputs()
    limit = channel_range(weight)
    plain = round_weight(weight, limit)
    assert torch.equal(compensated(weight, limit, inputs[:0]).weight, plain.weight)
    assert torch.equal(compensated(weight, limit, torch.zeros_like(inputs)).weight, plain.weight)

    weight, inputs = weight_and_inputs()
    inputs[:, 5] = 0
    limit = channel_range(weight)
    assert torch.equal(compensated(weight, limit, inputs).weight[:, 5], round_weight(weight, limit).weight[:, 5])


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    _, inputs = weight_and_inputs()
    hessian = inputs.T @ inputs
    factor = inverse_factor(hessian, 0.01).double()
    assert torch.equal(factor, factor.triu())
    damped = hessian.double() + 0.01 * hessian.double().diagonal().mean() * torch.eye(64)
    torch.testing.assert_close(factor.T @ factor @ damped, torch.eye(64).double(), rtol=0, atol=1e-3)

    hessian = torch.ones(8, 8)
    assert inverse_factor(hessian, 0.0 + 1e-30).isfinite().all()


def test_each_channel_takes_the_range_that_is_best_after_compensation() -> None:
    weight, inputs = weight_and_inputs()
    whole = channel_range(weight)
    clipped = whole * torch.where(torch.arange(48) % 3 == 0, 1.0, 0.9)  # a third is not narrowed at all
    hessian = inputs.T @ inputs
    errors = [weighted_error(weight, compensated(weight, limit, inputs), hessian) for limit in (whole, clipped)]
    found = compensated_best(weight, whole, clipped, inputs)
    torch.testing.assert_close(weighted_error(weight, found, hessian), torch.minimum(*errors), rtol=1e-3, atol=0)
    assert 0 < int((found.scale * 127 < whole * 0.99).sum()) < 48
    assert torch.equal(compensated_best(weight, whole, clipped, inputs[:0]).scale, whole / 127)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_inputs_that_are_no_numbers_are_told(odd: float) -> None:
    weight, inputs = weight_and_inputs(0, columns=64, tokens=100)
    inputs[3, 5] = odd
    with pytest.raises(ModelError, match="during calibration is not a number"):
        compensated(weight, channel_range(weight), inputs)

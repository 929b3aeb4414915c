"""The linear port: every form computes the same product; packed rows do not depend on their batch."""

import pytest
import torch

from serving.model.linear import Linear, LinearWeight, PlainLinear, PrepackedLinear, fuse, make_linear

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(70, 96, generator=GENERATOR)
WEIGHT = torch.randn(40, 96, generator=GENERATOR) / 10
BIAS = torch.randn(40, generator=GENERATOR)


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("form", [PlainLinear, PrepackedLinear])
def test_forms_agree_with_the_definition(form: type[PlainLinear | PrepackedLinear], bias: torch.Tensor | None) -> None:
    linear: Linear = form(WEIGHT, bias)
    expected = ROWS.double() @ WEIGHT.T.double() + (0 if bias is None else bias.double())
    assert (linear(ROWS) - expected).abs().max() < 1e-5
    assert (linear.in_features, linear.out_features) == (96, 40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    linear = make_linear(LinearWeight(WEIGHT.to(dtype)))
    together = linear(ROWS.to(dtype))
    for rows in (1, 2, 3, 4, 5, 8, 17, 32, 33, 64):
        assert torch.equal(linear(ROWS[:rows].to(dtype)), together[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lone_long_row_has_the_same_bits_too(dtype: torch.dtype) -> None:
    linear = make_linear(LinearWeight((torch.randn(1024, 2816, generator=GENERATOR) / 50).to(dtype)))
    rows = torch.randn(32, 2816, generator=GENERATOR).to(dtype)
    together = linear(rows)
    assert all(torch.equal(linear(rows[i : i + 1])[0], together[i]) for i in range(32))


def test_fused_outputs_lie_side_by_side() -> None:
    fused = make_linear(fuse(LinearWeight(WEIGHT, BIAS), LinearWeight(WEIGHT * 2)))
    expected = torch.cat((PlainLinear(WEIGHT, BIAS)(ROWS), PlainLinear(WEIGHT * 2)(ROWS)), -1)
    assert torch.allclose(fused(ROWS), expected, atol=1e-5)
    plain = make_linear(fuse(LinearWeight(WEIGHT), LinearWeight(WEIGHT)))
    assert torch.allclose(plain(ROWS)[:, 40:], PlainLinear(WEIGHT)(ROWS), atol=1e-5)


def test_other_dtypes_stay_plain() -> None:
    assert isinstance(make_linear(LinearWeight(WEIGHT.double())), PlainLinear)

"""The linear port: every form computes the same product; packed rows do not depend on their batch."""

import os
import subprocess
import sys

import pytest
import torch

from serving.model import linear as int8_linear
from serving.model.linear import (
    Int8Linear,
    Linear,
    LinearWeight,
    PlainLinear,
    PrepackedLinear,
    fuse,
    make_linear,
    multiply_int8,
    quantise_rows,
)

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


WITHOUT_AVX512 = """
import torch
from serving.model.linear import LinearWeight, make_linear
assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
linear = make_linear(LinearWeight(torch.randn(1024, 2816).bfloat16()))
rows = torch.randn(32, 2816).bfloat16()
together = linear(rows)
assert all(torch.equal(linear(rows[:n]), together[:n]) for n in (1, 2, 5, 17))
"""


def test_bfloat16_is_computed_where_onednn_cannot_pack_it() -> None:
    """A processor with AVX2 at most, as oneDNN is made to believe: it reads the variable once per process."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_AVX512], env=environment, capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lone_long_row_has_the_same_bits_too(dtype: torch.dtype) -> None:
    linear = make_linear(LinearWeight((torch.randn(1024, 2816, generator=GENERATOR) / 50).to(dtype)))
    rows = torch.randn(32, 2816, generator=GENERATOR).to(dtype)
    together = linear(rows)
    assert all(torch.equal(linear(rows[i : i + 1])[0], together[i]) for i in range(32))


def test_fused_outputs_lie_side_by_side_and_other_dtypes_stay_plain() -> None:
    fused = make_linear(fuse(LinearWeight(WEIGHT, BIAS), LinearWeight(WEIGHT * 2)))
    expected = torch.cat((PlainLinear(WEIGHT, BIAS)(ROWS), PlainLinear(WEIGHT * 2)(ROWS)), -1)
    assert torch.allclose(fused(ROWS), expected, atol=1e-5)
    plain = make_linear(fuse(LinearWeight(WEIGHT), LinearWeight(WEIGHT)))
    assert torch.allclose(plain(ROWS)[:, 40:], PlainLinear(WEIGHT)(ROWS), atol=1e-5)
    assert isinstance(make_linear(LinearWeight(WEIGHT.double())), PlainLinear)


def int8_weight() -> tuple[torch.Tensor, torch.Tensor]:
    """A weight as int8, and its scales."""
    scale = WEIGHT.abs().amax(1) / 127
    return (WEIGHT / scale.unsqueeze(1)).round().to(torch.int8), scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_products_stay_close_to_the_weight(dtype: torch.dtype) -> None:
    weight, scale = int8_weight()
    linear = make_linear(LinearWeight(weight, BIAS, scale))
    assert isinstance(linear, Int8Linear)
    rows = ROWS.to(dtype)
    found = linear(rows)
    assert found.dtype == dtype
    expected = rows.double() @ WEIGHT.T.double() + BIAS.double()
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()
    assert (linear.in_features, linear.out_features) == (96, 40)
    assert all(torch.equal(linear(rows[i : i + 1])[0], found[i]) for i in range(70))


def test_int8_scales_are_fused_and_rows_quantised_each_by_its_largest() -> None:
    weight, scale = int8_weight()
    part = LinearWeight(weight, None, scale)
    fused = make_linear(fuse(part, LinearWeight(weight, BIAS, scale * 2)))
    alone = Int8Linear(weight, scale)(ROWS)
    assert torch.equal(fused(ROWS)[:, :40], alone)
    assert torch.equal(fused(ROWS)[:, 40:], Int8Linear(weight, scale * 2, BIAS)(ROWS))
    rows = torch.tensor([[0.0, 0.0, 0.0], [127.0, -63.5, 0.5], [1.0, -2.0, 0.0], [1e-38, 0.0, -1e-39]])
    found, scales = quantise_rows(rows)
    assert found[:3].tolist() == [[0, 0, 0], [127, -64, 0], [64, -127, 0]]
    assert scales.flatten().tolist()[:2] == [0.0, 1.0]
    assert torch.isfinite(scales).all()


@pytest.mark.parametrize("exact", [True, False])
def test_int8_sums_are_exact(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    """Also where the CPU's integer product is not, and for an inner dimension of one, which torch computes wrongly."""
    monkeypatch.setattr(int8_linear, "_cpu_is_exact", lambda: exact)
    for features in (1, 2, 33, 1024):
        x = torch.randint(-128, 128, (5, features), generator=GENERATOR, dtype=torch.int8)
        weight = torch.randint(-127, 128, (7, features), generator=GENERATOR, dtype=torch.int8)
        assert torch.equal(multiply_int8(x, weight), (x.long() @ weight.long().T).int())

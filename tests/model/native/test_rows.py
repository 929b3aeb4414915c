"""Vectors, row operations and cache rows of the native step, against numpy and torch."""

import ctypes

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from serving.model.architecture import Architecture, LatentRow
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.layers import RmsNorm
from serving.model.rope import rotate
from tests.model.native.kernels import FORMS, Case, at

pytestmark = pytest.mark.timeout(600)  # the first test may wait for a compiler

DTYPES = (torch.float32, torch.bfloat16)
SIZES = (1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 512, 1000)


def address(tensor: Tensor) -> ctypes.c_void_p:
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def exp_of(kernels: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    kernels.test_exp(at(x), len(x), at(y))
    return y


def test_exp_is_within_two_units_in_the_last_place_and_right_at_its_ends(kernels: ctypes.CDLL) -> None:
    x = np.linspace(-87.3, 88, 400_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp_of(kernels, x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    x = np.array([0, -0.0, -87.4, -1e30, -np.inf, 88.5, 1e30, np.inf, np.nan], np.float32)
    assert exp_of(kernels, x) == pytest.approx([1, 1, 0, 0, 0, np.exp(88), np.exp(88), np.exp(88), np.nan], nan_ok=True)


@pytest.mark.parametrize("size", SIZES)
def test_exp_of_a_tail_has_the_same_bits(kernels: ctypes.CDLL, size: int) -> None:
    x = np.random.default_rng(size).normal(size=2048).astype(np.float32) * 10
    assert (exp_of(kernels, x[:size].copy()) == exp_of(kernels, x)[:size]).all()


def test_bfloat16_rounds_as_torch_does(kernels: ctypes.CDLL) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_003, dtype=np.uint32)
    bits[:6] = (0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000000)  # ties, infinities, zeros
    x = torch.from_numpy(bits.view(np.float32))
    x = x[(x.abs() > 1.2e-38) | (x == 0) | x.isnan()]  # denormal numbers may count as zero
    got = torch.empty(x.shape, dtype=torch.bfloat16)
    kernels.test_to_bf16(address(x), x.shape[0], address(got))
    torch.testing.assert_close(got, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    back = torch.empty_like(x)
    kernels.test_from_bf16(address(got), x.shape[0], address(back))
    torch.testing.assert_close(back, got.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(kernels: ctypes.CDLL, dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x, weight = torch.randn(size, generator=generator) * 5, torch.rand(size, generator=generator).to(dtype)
    wanted = (x * (x.double().square().mean() + 1e-6).rsqrt().float()).to(dtype) * weight
    got = torch.empty(size, dtype=dtype)
    wide = weight.float()
    kernels.test_rms_norm(address(x), address(wide), size, ctypes.c_float(1e-6), FORMS[dtype], address(got))
    torch.testing.assert_close(got, wanted, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=0)
    if dtype == torch.float32:
        torch.testing.assert_close(got, RmsNorm(weight, 1e-6)(x[None])[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_quantised_rows_are_exact(kernels: ctypes.CDLL, dtype: torch.dtype, size: int) -> None:
    x = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3).to(dtype)
    padded = -(-size // 64) * 64
    got = torch.full((padded,), 99, dtype=torch.int8)
    scale = torch.empty(1)
    kernels.test_quantise_row(address(x), size, padded, FORMS[dtype], address(got), address(scale))
    largest = x.float().abs().max()
    assert scale[0] == largest / 127
    assert torch.equal(got[:size], (x.float() * (127 / largest)).round().to(torch.int8))
    assert not got[size:].any()


def test_a_row_of_zeros_quantises_to_zeros_and_sums_are_scaled(kernels: ctypes.CDLL) -> None:
    for value in (0.0, 1e-41):
        x, got, scale = torch.full((40,), value), torch.full((64,), 9, dtype=torch.int8), torch.full((1,), 9.0)
        kernels.test_quantise_row(address(x), 40, 64, 0, address(got), address(scale))
        assert not got.any()
        assert scale[0] < 1e-40
    x, y = torch.randn(2, 77, generator=torch.Generator().manual_seed(0))
    wanted = x + 0.3 * y
    kernels.test_add_scaled(address(x), ctypes.c_float(0.3), address(y), 77)
    torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [1, 3, 4, 16, 32, 33])
def test_rotations(kernels: ctypes.CDLL, dtype: torch.dtype, pairs: int) -> None:
    x = torch.randn(2 * pairs, generator=torch.Generator().manual_seed(pairs)).to(dtype)
    angles = torch.arange(pairs) * 0.7
    wanted = rotate(x, torch.polar(torch.tensor(1.2), angles)).to(dtype)
    cosines, sines = angles.cos() * 1.2, angles.sin() * 1.2
    kernels.test_rotate(address(x), address(cosines), address(sines), pairs, FORMS[dtype])
    torch.testing.assert_close(x, wanted, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_swiglu(kernels: ctypes.CDLL, dtype: torch.dtype, size: int) -> None:
    gate, up = (torch.randn(2, size, generator=torch.Generator().manual_seed(size)) * 4).unbind()
    gate[0] = -200.0
    got = torch.empty(size, dtype=dtype)
    kernels.test_swiglu(address(gate), address(up), size, FORMS[dtype], address(got))
    wanted = (F.silu(gate.double()) * up).to(dtype)
    torch.testing.assert_close(got, wanted, rtol=2e-6 if dtype == torch.float32 else 2**-7, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_clamped_swiglu(kernels: ctypes.CDLL, dtype: torch.dtype, size: int) -> None:
    gate, up = (torch.randn(2, size, generator=torch.Generator().manual_seed(size)) * 4).unbind()
    gate[0], up[-1] = -200.0, 90.0
    got = torch.empty(size, dtype=dtype)
    kernels.test_clamped_swiglu(
        *(address(gate), address(up), size, ctypes.c_float(1.702), ctypes.c_float(5.0), FORMS[dtype], address(got))
    )
    gate, up = gate.double().clamp(max=5), up.double().clamp(-5, 5)
    wanted = ((up + 1) * gate * (1.702 * gate).sigmoid()).to(dtype)
    torch.testing.assert_close(got, wanted, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)
    nothing = torch.full((size,), float("nan"))
    one = torch.ones(size)
    for gates, ups in ((nothing, one), (one, nothing)):
        kernels.test_clamped_swiglu(
            *(address(gates), address(ups), size, ctypes.c_float(1.7), ctypes.c_float(5.0), FORMS[dtype], address(got))
        )
        assert got.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_cache_rows_have_the_bytes_of_the_torch_cache(
    kernels: ctypes.CDLL, dtype: torch.dtype, kv_dtype: KvDtype, tiny_config: Architecture
) -> None:
    config, row = tiny_config, tiny_config.row
    assert isinstance(row, LatentRow)
    cache = KvCache(config, 6, 4, dtype, kv_dtype=kv_dtype)
    case = Case(
        heads=1, kv_lora=row.latent, rope=row.rope, dtype=dtype, block_tokens=4, blocks=6,
        layers=cache.num_layers, int8_cache=kv_dtype == "int8",
    )  # fmt: skip
    shape = case.shape()
    assert (shape.row_bytes, shape.rope_offset) == (cache.row_bytes, cache.layout.rope_offset_bytes)
    assert shape.scale_offset == cache.layout.scale_offset_bytes
    mine = case.cache(kernels, layer=1)
    slots = torch.arange(24) // 4 * cache.num_layers * 4 + torch.arange(24) % 4
    cache.write(1, slots, case.rows.to(dtype))
    assert np.array_equal(mine, cache.tensor.view(torch.uint8).flatten().numpy())

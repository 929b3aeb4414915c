"""Products with packed weights: correct on every instruction set, and each row the same bits in any batch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.linear import Int8Linear, LinearWeight
from serving.model.native.layout import W8A16_INPUTS
from serving.model.native.library import Library
from serving.model.native.panels import PanelForms
from tests.cases.nightly import mostly_nightly
from tests.model.native.kernels import chosen_sets
from tests.model.native.native_libraries import NAMES, computing_with, heads, panels, quantised

# out_features, in_features: below, at and beyond panels and steps; odd ones; long chains.
SHAPES = [(1, 1), (32, 64), (33, 65), (7, 130), (64, 63), (100, 200), (96, 384), (40, 1025)]
BATCHES = (1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 25, 32, 33, 100)
DIGIT_RANGE = torch.tensor(127.0 * 256 + 127)
FLOATS = [torch.float32, torch.bfloat16]


SAME_AS = "tests/model/native/test_products.py::test_products_in_floating_point"


@pytest.fixture(params=mostly_nightly(NAMES, chosen_sets(NAMES), SAME_AS))
def library(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Library]:
    """Computes with one instruction set during a test."""
    folder = pytestconfig.cache.mkdir("native-soft-tiles")
    with computing_with(request.param, folder) as library:
        yield library


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def worst(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).abs().max())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_in_floating_point(library: Library, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = (random(1, *shape) / shape[1] ** 0.5).to(dtype), random(2, shape[0]).to(dtype)
    x = random(3, 70, shape[1]).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    found = panels(library, weight, bias=bias)(x)
    assert found.dtype == dtype
    assert worst(found, expected) < (1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_in_int8_are_exact(library: Library, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Bit-equal with torch's, which is exact: the same formula on both sides."""
    weight, scale = quantised(random(1, *shape))
    bias = random(2, shape[0])
    x = random(3, 70, shape[1]).to(dtype)
    x[4] = 0
    x[5] *= 1e-33
    x[6, 0] = 1e4
    assert torch.equal(panels(library, weight, scale, bias)(x), Int8Linear(weight, scale, bias)(x))


def test_the_largest_sums_and_one_input_too_many(library: Library) -> None:
    weight = torch.full((32, 4096), -127, dtype=torch.int8)
    x = torch.full((3, 4096), 5.0)
    x[1] = -5.0
    found = panels(library, weight, torch.ones(32))(x)
    row_scale = torch.tensor(5.0) / 127
    assert torch.equal(found[0], torch.full((32,), -float(127 * 127 * 4096)) * row_scale)
    assert torch.equal(found[1], -found[0])
    levels = torch.full((1, W8A16_INPUTS, 3), -127, dtype=torch.int8)
    found = heads(library, levels, torch.ones(1, 1, 3))(torch.full((2, 1, W8A16_INPUTS), 3.0))
    assert torch.equal(found, torch.full((2, 1, 3), -127.0 * W8A16_INPUTS) * DIGIT_RANGE * (3.0 / DIGIT_RANGE))
    levels = torch.ones(2, W8A16_INPUTS + 1, 3, dtype=torch.int8)
    with pytest.raises(ModelError, match="513"):
        heads(library, levels, torch.ones(2, 1, 3))


@pytest.mark.parametrize("x_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_brought_into_the_weights_form(library: Library, dtype: torch.dtype, x_dtype: torch.dtype) -> None:
    weight, x = random(1, 40, 96).to(dtype) / 10, random(2, 9, 96).to(x_dtype)
    found = panels(library, weight)(x)
    assert found.dtype == x_dtype
    expected = x.to(dtype).double() @ weight.double().T
    assert worst(found, expected) < (1e-5 if torch.bfloat16 not in (dtype, x_dtype) else 0.02)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(3, 100, 200), (4, 64, 32), (2, 33, 7)])
def test_every_head_has_its_own_product(library: Library, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    count, into, out = sizes
    weight, x = random(1, count, into, out).to(dtype) / into**0.5, random(2, 20, count, into).to(dtype)
    expected = torch.einsum("rhi,hio->rho", x.double(), weight.double())
    assert worst(heads(library, weight)(x), expected) < (1e-5 if dtype == torch.float32 else 0.02)


def in_16_bits(x: Tensor, levels: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The formula of W8A16, `[rows, heads, in] -> [rows, heads, out]`, its sums exact."""
    x = x.float() * inputs
    largest = x.abs().amax(-1, keepdim=True)
    whole = (x * (DIGIT_RANGE / largest.clamp_min(1e-30))).round()
    high = ((whole + 0.5) / 256).round()
    sums = (torch.einsum("rhi,hio->rho", part.double(), levels.double()) for part in (high, whole - 256 * high))
    return (256 * next(sums) + next(sums)).float() * (largest / DIGIT_RANGE) * outputs


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scaled", ["inputs", "outputs"])
@pytest.mark.parametrize("sizes", [(3, 128, 200), (4, 64, 32), (2, 33, 7), (2, 65, 97), (1, 512, 70)])
def test_int8_weights_with_activations_of_16_bits(
    library: Library, sizes: tuple[int, int, int], scaled: str, dtype: torch.dtype
) -> None:
    count, into, out = sizes
    levels = torch.randint(-127, 128, sizes, dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    scale = random(2, count, *((into, 1) if scaled == "inputs" else (1, out))).abs() / 127
    x = random(3, 100, count, into).to(dtype)
    x[4] = 0
    x[5] *= 1e-31
    x[6, 0, 0] = 1e4
    x[7] = 1.0  # all digits the same
    product = heads(library, levels, scale)
    together = product(x)
    ones = torch.ones(count, 1)
    inputs, outputs = (scale[:, :, 0], ones) if scaled == "inputs" else (ones, scale[:, 0])
    assert torch.equal(together, in_16_bits(x, levels, inputs, outputs).to(dtype))
    exact = torch.einsum("rhi,hio->rho", x.double(), levels.double() * scale)
    assert worst(together[8:], exact[8:]) < float(exact[8:].abs().max()) * (1e-3 if dtype == torch.float32 else 5e-3)
    for rows in BATCHES:
        assert torch.equal(product(x[:rows]), together[:rows]), rows


def test_an_int8_linear_with_activations_of_16_bits(library: Library) -> None:
    """A plain product, with a bias; one more group than none."""
    weight, scale = quantised(random(1, 100, 200))
    bias, x = random(2, 100), random(3, 33, 200).bfloat16()
    found = PanelForms(library).linear(LinearWeight(weight, bias, scale, weight_only=True))(x)
    expected = in_16_bits(x.unsqueeze(1), weight.T.unsqueeze(0), torch.ones(1, 1), scale.unsqueeze(0))[:, 0] + bias
    assert torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(100, 200), (96, 384), (33, 65), (1025, 256)])
def test_a_row_has_the_same_bits_in_every_batch(library: Library, shape: tuple[int, int], kind: str) -> None:
    weight, scale = random(1, *shape), None
    if kind == "int8":
        weight, scale = quantised(weight)
    else:
        weight = weight.to(getattr(torch, kind))
    product = panels(library, weight, scale)
    x = random(3, 100, shape[1]).to(torch.float32 if kind == "float32" else torch.bfloat16)
    together = product(x)
    for rows in BATCHES:
        assert torch.equal(product(x[:rows]), together[:rows]), rows
    assert torch.equal(product(x[57:58])[0], together[57])


def test_long_runs_of_rows_and_none(library: Library) -> None:
    """More rows than fit into a cache are computed in runs; the result does not change at their borders."""
    weight, x = random(1, 64, 1024).bfloat16(), random(2, 700, 1024).bfloat16()
    product = panels(library, weight)
    together = product(x)
    assert worst(together, x.double() @ weight.double().T) < 1.0
    for row in (0, 191, 192, 193, 383, 384, 699):
        assert torch.equal(product(x[row : row + 1])[0], together[row])
    assert panels(library, random(1, 40, 96))(torch.empty(0, 96)).shape == (0, 40)


def test_threads_and_what_stands_beside_a_row_change_nothing(library: Library) -> None:
    weight, x = random(1, 300, 128).bfloat16(), random(2, 50, 128).bfloat16()
    product = panels(library, weight)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            results.append(product(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
    # Rows that are not finite stay alone with that, although kernels read past the end of a row.
    weight, x = random(1, 40, 70), random(2, 5, 70)
    product = panels(library, weight)
    expected = product(x)
    x[3] = float("nan")
    found = product(x)
    assert found[3].isnan().all()
    assert torch.equal(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])

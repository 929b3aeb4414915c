"""Products with packed weights: right on every instruction set, and each row the same bits in any batch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from serving.model.int8_linear import Int8Linear
from serving.model.native.library import Library
from tests.model.native.native_libraries import NAMES, computing_with, heads, panels, quantised

# out_features, in_features: below, at and beyond panels and steps; odd ones; long chains.
SHAPES = [(1, 1), (32, 64), (33, 65), (7, 130), (64, 63), (100, 200), (96, 384), (40, 1025)]
BATCHES = (1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 25, 32, 33, 100)
FLOATS = [torch.float32, torch.bfloat16]


@pytest.fixture(params=NAMES)
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


def test_the_largest_int8_sums(library: Library) -> None:
    weight = torch.full((32, 4096), -127, dtype=torch.int8)
    x = torch.full((3, 4096), 5.0)
    x[1] = -5.0
    found = panels(library, weight, torch.ones(32))(x)
    row_scale = torch.tensor(5.0) / 127
    assert torch.equal(found[0], torch.full((32,), -float(127 * 127 * 4096)) * row_scale)
    assert torch.equal(found[1], -found[0])


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


def test_long_runs_of_rows(library: Library) -> None:
    """More rows than stay in a cache are done in runs; nothing changes at their borders."""
    weight, x = random(1, 64, 1024).bfloat16(), random(2, 700, 1024).bfloat16()
    product = panels(library, weight)
    together = product(x)
    assert worst(together, x.double() @ weight.double().T) < 1.0
    for row in (0, 191, 192, 193, 383, 384, 699):
        assert torch.equal(product(x[row : row + 1])[0], together[row])


def test_threads_change_nothing(library: Library) -> None:
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


def test_no_rows(library: Library) -> None:
    assert panels(library, random(1, 40, 96))(torch.empty(0, 96)).shape == (0, 40)


def test_what_stands_beside_a_row_does_not_matter(library: Library) -> None:
    """Rows that are not finite stay alone with that, although kernels read past the end of a row."""
    weight, x = random(1, 40, 70), random(2, 5, 70)
    product = panels(library, weight)
    expected = product(x)
    x[3] = float("nan")
    found = product(x)
    assert found[3].isnan().all()
    assert torch.equal(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])

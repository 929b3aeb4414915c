"""Attention of the native step: against float64, over every cache form, and the same bits in any company."""

import ctypes
from dataclasses import replace

import pytest
import torch

from tests.model.native.attention_checks import TOLERANCE, check_broken_row, check_company, distance, run, spans_of
from tests.model.native.kernels import Case, Span

INT8_TOLERANCE = 4e-2

pytestmark = pytest.mark.timeout(600)  # the first test may wait for a compiler


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_tokens", [1, 4, 16])
def test_rows_in_latent_space(kernels: ctypes.CDLL, dtype: torch.dtype, block_tokens: int) -> None:
    case = Case(dtype=dtype, block_tokens=block_tokens, blocks=-(-700 // block_tokens))
    got, wanted = run(case, kernels, [(1, start, False) for start in (0, 1, 3, 15, 16, 17, 254, 255, 256, 511, 600)])
    assert distance(got, wanted) < TOLERANCE[dtype]


IN_PLACE = Case(kv_lora=64, rope=32, block_tokens=16, blocks=40)
"""Rows that all kernels read in place in the cache."""


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_tokens", [16, 24, 48])
@pytest.mark.parametrize("heads", [1, 5, 16, 20, 40])
def test_rows_read_in_place(kernels: ctypes.CDLL, dtype: torch.dtype, block_tokens: int, heads: int) -> None:
    case = replace(IN_PLACE, heads=heads, dtype=dtype, block_tokens=block_tokens, blocks=-(-960 // block_tokens))
    starts = (0, 1, 14, 15, 16, 31, 32, 47, 48, 63, 64, 100, 127, 128, 255, 256, 270, 319, 320, 575, 900)
    got, wanted = run(case, kernels, [(1, start, False) for start in starts] + [(3, 254, False), (4, 318, False)], 2)
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("start", [0, 1, 100, 127, 128, 131])
@pytest.mark.parametrize("rows", [5, 32, 33, 150])
def test_chunks(kernels: ctypes.CDLL, dtype: torch.dtype, start: int, rows: int) -> None:
    case = Case(dtype=dtype, block_tokens=16, blocks=20)
    got, wanted = run(case, kernels, [(rows, start, True)])
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_chunk_over_several_windows(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    case = Case(heads=2, kv_lora=8, nope=8, rope=4, value=8, dtype=dtype, block_tokens=16, blocks=140)
    got, wanted = run(case, kernels, [(70, 2100, True), (60, 0, True)])
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "sizes",  # heads, kv_lora, nope, rope, value
    [(1, 5, 3, 2, 7), (3, 33, 20, 6, 45), (6, 512, 128, 64, 128), (9, 96, 64, 32, 33)],
)
def test_any_sizes(
    kernels: ctypes.CDLL, dtype: torch.dtype, plain: bool, sizes: tuple[int, int, int, int, int]
) -> None:
    case = Case(*sizes, dtype=dtype, block_tokens=7, blocks=45)
    got, wanted = run(case, kernels, [(9, 30, plain), (1, 300, plain), (6, 0, plain)])
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_int8_latents_and_weights(kernels: ctypes.CDLL, dtype: torch.dtype, plain: bool, weights: bool) -> None:
    case = Case(kv_lora=64, value=32, dtype=dtype, block_tokens=4, blocks=90, int8_cache=True, int8_weights=weights)
    got, wanted = run(case, kernels, [(4, 0, plain), (7, 11, plain), (1, 340, plain)])
    assert distance(got, wanted) < INT8_TOLERANCE


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("sizes", [(1, 5, 3, 2, 7), (3, 33, 20, 6, 45), (6, 512, 128, 64, 128)])
def test_int8_weights_with_activations_of_16_bits(
    kernels: ctypes.CDLL, dtype: torch.dtype, plain: bool, sizes: tuple[int, int, int, int, int]
) -> None:
    """As close to the dequantised values as floating-point weights are, in both forms."""
    case = Case(*sizes, dtype=dtype, block_tokens=7, blocks=45, w8a16=True)
    got, wanted = run(case, kernels, [(9, 30, plain), (1, 300, plain), (6, 0, plain)], threads=2)
    assert distance(got, wanted) < max(TOLERANCE[dtype], 2e-4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["float", "int8", "w8a16"])
@pytest.mark.parametrize(("rope", "block_tokens"), [(8, 4), (32, 16)])
def test_a_row_has_the_same_bits_in_any_company(
    kernels: ctypes.CDLL, dtype: torch.dtype, form: str, rope: int, block_tokens: int
) -> None:
    int8, w8a16 = form == "int8", form == "w8a16"
    sizes = {"heads": 5, "kv_lora": 64, "rope": rope, "block_tokens": block_tokens, "blocks": 800 // block_tokens}
    check_company(Case(**sizes, dtype=dtype, int8_cache=int8, int8_weights=int8, w8a16=w8a16), kernels, 3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [Case(heads=3, blocks=200), replace(IN_PLACE, heads=6)])
def test_drafts_have_the_bits_of_rows_that_come_one_by_one(
    kernels: ctypes.CDLL, dtype: torch.dtype, shape: Case
) -> None:
    case = replace(shape, dtype=dtype)
    cache = case.cache(kernels)
    for start in (0, 62, 253, 254, 255, 510):
        (whole,) = spans_of(case, [(4, start, False)])
        query = case.queries(4)
        single = [Span(1, start + row, whole.table, False) for row in range(4)]
        assert torch.equal(
            case.attend(kernels, query, [whole], cache),
            torch.cat([case.attend(kernels, query[row : row + 1], [span], cache) for row, span in enumerate(single)]),
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_chunk_may_be_cut_anywhere(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Chunks of more than four rows: other cuts even give the same bits; so do other rows in the batch."""
    case = Case(dtype=dtype, block_tokens=16, blocks=40)
    cache = case.cache(kernels)
    (whole,) = spans_of(case, [(300, 40, True)])
    query = case.queries(301)
    wanted = case.attend(kernels, query[:300], [whole], cache)
    for cut in (5, 31, 64, 200):
        parts = [Span(cut, 40, whole.table, True), Span(300 - cut, 40 + cut, whole.table, True)]
        assert torch.equal(case.attend(kernels, query[:300], parts, cache, 2), wanted)
    mixed = case.attend(kernels, query, [whole, Span(1, 50, whole.table, False)], cache, 2)
    assert torch.equal(mixed[:300], wanted)


def test_both_forms_agree_and_rows_may_be_more_than_one_wave(kernels: ctypes.CDLL) -> None:
    case = Case(block_tokens=16, blocks=40)
    cache = case.cache(kernels)
    (plain,) = spans_of(case, [(6, 333, True)])
    query = case.queries(6)
    absorbed = Span(6, 333, plain.table, False)
    one, other = (case.attend(kernels, query, [span], cache) for span in (plain, absorbed))
    assert distance(one, other.double()) < 1e-5
    case = Case(heads=2, kv_lora=16, block_tokens=4, blocks=60)
    got, wanted = run(case, kernels, [(1, 1 + i % 200, False) for i in range(600)], threads=2)
    assert distance(got, wanted) < 1e-5


def test_what_was_never_written_is_not_read(kernels: ctypes.CDLL) -> None:
    """Rows after a context may hold any values, NaN included."""
    for plain in (False, True):
        case = Case(block_tokens=4, blocks=40)
        cache = case.cache(kernels)
        spans = [Span(5, 30, list(range(9)), plain)]  # 35 tokens: one of the last block is free
        rows = cache.view("float32").reshape(case.blocks, case.layers, case.block_tokens, -1)
        rows[8, 1, 3] = float("nan")
        rows[9:] = float("nan")
        rows[:, 0] = float("nan")
        query = case.queries(5)
        assert distance(case.attend(kernels, query, spans, cache), case.reference(query, spans)) < 1e-5


def test_what_was_never_written_is_not_read_in_place(kernels: ctypes.CDLL) -> None:
    """Tiles load sixteen rows at once: rows of a block that are still free may hold any values, too."""
    case = replace(IN_PLACE, dtype=torch.bfloat16)
    cache = case.cache(kernels)
    spans = [Span(3, 33, [7, 2, 5], False)]  # 36 tokens, 4 of the third block
    rows = cache.view("int16").reshape(case.blocks, case.layers, case.block_tokens, -1)
    rows[5, 1, 4:] = rows[8:] = rows[:, 0] = 0x7FC0  # NaN
    query = case.queries(3)
    assert distance(case.attend(kernels, query, spans, cache), case.reference(query, spans)) < TOLERANCE[case.dtype]


def test_a_broken_row_stays_alone(kernels: ctypes.CDLL) -> None:
    check_broken_row(Case(block_tokens=4, blocks=40), kernels)

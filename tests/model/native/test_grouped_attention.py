"""Grouped attention of the native step: against float64, over every cache form, and the same bits in any company."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model.native.attention_checks import TOLERANCE, check_broken_row, check_company, distance, run, spans_of
from tests.model.native.grouped_case import GroupedCase, as_kept
from tests.model.native.kernels import Span

HEADS = [(9, 3, 64), (6, 6, 80), (8, 2, 96), (4, 1, 128), (3, 3, 10), (40, 1, 32)]

pytestmark = pytest.mark.timeout(600)  # the first test may wait for a compiler


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_any_sizes(kernels: ctypes.CDLL, dtype: torch.dtype, int8: bool, heads: tuple[int, int, int]) -> None:
    case = GroupedCase(*heads, dtype=dtype, block_tokens=7, blocks=90, int8_cache=int8)
    got, wanted = run(case, kernels, [(9, 30), (1, 300), (6, 0), (40, 240), (1, 0), (1, 255), (1, 600)], threads=2)
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block_tokens", [1, 16, 24, 48])
def test_rows_read_in_place(kernels: ctypes.CDLL, dtype: torch.dtype, block_tokens: int) -> None:
    case = GroupedCase(dtype=dtype, block_tokens=block_tokens, blocks=-(-960 // block_tokens))
    starts = (0, 1, 14, 15, 16, 31, 32, 47, 48, 63, 64, 100, 127, 128, 255, 256, 270, 319, 320, 575, 900)
    got, wanted = run(case, kernels, [(1, start) for start in starts] + [(3, 254), (4, 318), (70, 200)], 2)
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("window", [0, 1, 40, 256, 300])
def test_windows_and_sinks(kernels: ctypes.CDLL, dtype: torch.dtype, int8: bool, window: int) -> None:
    case = GroupedCase(
        8, 2, 64, dtype=dtype, block_tokens=16, blocks=60, int8_cache=int8, window=window, with_sinks=True
    )
    lengths = [(9, 30), (1, 300), (6, 0), (70, 220), (1, 0), (1, 255), (1, 256), (1, 295), (1, 296), (3, 900)]
    got, wanted = run(case, kernels, lengths, threads=2)
    assert distance(got, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_a_sink_far_from_all_scores(kernels: ctypes.CDLL, size: float) -> None:
    case = GroupedCase(with_sinks=True)
    case.sinks.fill_(size)
    spans = spans_of(case, [(3, 30)])
    got = case.attend(kernels, case.queries(3), spans, case.cache(kernels))
    wanted = case.reference(case.queries(3), spans)
    assert float((got.double() - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_has_left_a_window_is_not_read(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Whole pieces of 256 tokens, with any contents; and a row's bits equal those of any other cut."""
    case = GroupedCase(dtype=dtype, block_tokens=16, blocks=70, window=100, with_sinks=True)
    (whole,) = spans_of(case, [(200, 700)])  # the first row sees positions from 601, the last those from 800 to 899
    cache, query = case.cache(kernels), case.queries(200)
    wanted = case.attend(kernels, query, [whole], cache)
    rows = cache.reshape(case.blocks, case.layers, case.block_tokens, -1)
    rows[whole.table[:32], 1] = 0xFF  # NaN
    assert torch.equal(case.attend(kernels, query, [whole], cache, 2), wanted)
    single = [Span(1, 700 + row, whole.table, row % 2 == 0) for row in range(200)]
    assert torch.equal(case.attend(kernels, query, single, cache, 2), wanted)
    parts = [Span(31, 700, whole.table, True), Span(169, 731, whole.table, False)]
    assert torch.equal(case.attend(kernels, query, parts, cache, 7), wanted)
    assert distance(wanted, case.reference(query, [whole])) < TOLERANCE[dtype]


def test_more_rows_than_one_wave(kernels: ctypes.CDLL) -> None:
    case = GroupedCase(heads=4, kv_heads=2, head_dim=16, blocks=200)
    got, wanted = run(case, kernels, [(1, 1 + i % 200) for i in range(300)] + [(700, 50)], threads=2)
    assert distance(got, wanted) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("heads", [(9, 3, 64), (6, 6, 80), (40, 1, 32)])
@pytest.mark.parametrize("block_tokens", [4, 16])
def test_a_row_has_the_same_bits_in_any_company(
    kernels: ctypes.CDLL, dtype: torch.dtype, int8: bool, heads: tuple[int, int, int], block_tokens: int
) -> None:
    case = GroupedCase(*heads, dtype=dtype, block_tokens=block_tokens, blocks=800 // block_tokens, int8_cache=int8)
    check_company(case, kernels, 2)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 20)])
def test_a_prompt_has_the_bits_of_rows_that_come_one_by_one(
    kernels: ctypes.CDLL, dtype: torch.dtype, int8: bool, heads: tuple[int, int, int]
) -> None:
    """Cut into chunks anywhere, as draft tokens to verify, with other rows in the batch."""
    case = GroupedCase(*heads, dtype=dtype, block_tokens=16, blocks=40, int8_cache=int8)
    cache = case.cache(kernels)
    (whole,) = spans_of(case, [(300, 40)])
    query = case.queries(301)
    wanted = case.attend(kernels, query[:300], [whole], cache)
    for cut in (1, 4, 31, 200, 299):
        parts = [Span(cut, 40, whole.table, True), Span(300 - cut, 40 + cut, whole.table, False)]
        assert torch.equal(case.attend(kernels, query[:300], parts, cache, 2), wanted)
    mixed = case.attend(kernels, query, [whole, Span(1, 50, whole.table, False)], cache, 2)
    assert torch.equal(mixed[:300], wanted)
    single = [Span(1, 40 + row, whole.table, False) for row in range(300)]
    assert torch.equal(case.attend(kernels, query[:300], single, cache, 2), wanted)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 20])
def test_what_was_never_written_is_not_read(kernels: ctypes.CDLL, dtype: torch.dtype, head_dim: int) -> None:
    """Rows after a context may hold any values, NaN included; those of other layers, too."""
    case = GroupedCase(head_dim=head_dim, dtype=dtype, block_tokens=16, blocks=10)
    cache = case.cache(kernels)
    spans = [Span(3, 33, [7, 2, 5], plain=False)]  # 36 tokens, 4 of the third block
    rows = cache.reshape(case.blocks, case.layers, case.block_tokens, -1)
    rows[5, 1, 4:] = rows[8:] = rows[:, 0] = 0xFF  # NaN
    query = case.queries(3)
    assert distance(case.attend(kernels, query, spans, cache), case.reference(query, spans)) < TOLERANCE[dtype]


def test_a_broken_row_stays_alone(kernels: ctypes.CDLL) -> None:
    check_broken_row(GroupedCase(blocks=40), kernels)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 10])
def test_int8_rows_follow_the_rule(kernels: ctypes.CDLL, dtype: torch.dtype, head_dim: int) -> None:
    """For each KV head: value and key as int8, then the scale of each, the largest size / 127; ties to even."""
    case = GroupedCase(4, 2, head_dim, dtype=dtype, block_tokens=4, blocks=3)
    rows = case.rows.clone()
    rows[1, 0, 0] = 0.0
    rows[2, 1, 1, :3] = torch.tensor([127.0, 0.5, 1.5])
    object.__setattr__(case, "rows", rows)
    shape = replace_form(case)
    arena = shape.cache(kernels, layer=0).reshape(3, case.layers, 4, 2, -1)[:, 0].reshape(12, 2, -1)
    levels = arena[..., : 2 * head_dim].view(np.int8).reshape(12, 2, 2, head_dim)
    scales = arena[..., -8:].copy().view(np.float32)
    largest = rows.abs().amax(-1, keepdim=True)
    assert np.array_equal(scales, (largest / 127)[..., 0].numpy())
    assert np.array_equal(levels, (rows * (127 / largest.clamp_min(1e-30))).round().to(torch.int8).numpy())
    assert torch.equal(torch.from_numpy(levels * scales[..., None]), as_kept(rows))


def replace_form(case: GroupedCase) -> GroupedCase:
    """The same rows, to be written as int8."""
    int8 = replace(case, int8_cache=True)
    object.__setattr__(int8, "rows", case.rows)
    return int8

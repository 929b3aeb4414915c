"""Properties of every kind of attention of the native step: close to float64, and the same bits in any batch."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.model.native.grouped_case import GroupedCase
from tests.model.native.kernels import Case, Span

# Relative to the largest number. Intermediate rounding to bfloat16 costs a few of its units.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def distance(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    assert torch.isfinite(got).all()
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def spans_of(case: Case | GroupedCase, lengths: Sequence[tuple[int, int] | tuple[int, int, bool]]) -> list[Span]:
    """(rows, start, plain) -> spans with shuffled tables; every other one is plain by default."""
    generator = torch.Generator().manual_seed(case.seed + 2)
    spans: list[Span] = []
    for rows, start, *said in lengths:
        blocks = -(-(rows + start) // case.block_tokens)
        table = torch.randperm(case.blocks, generator=generator)[:blocks].tolist()
        spans.append(Span(rows, start, table, plain=said[0] if said else len(spans) % 2 == 1))
    return spans


def run(
    case: Case | GroupedCase,
    kernels: ctypes.CDLL,
    lengths: Sequence[tuple[int, int] | tuple[int, int, bool]],
    threads: int = 1,
) -> tuple[Tensor, Tensor]:
    """Results of the kernels, and the reference."""
    spans = spans_of(case, lengths)
    query = case.queries(sum(span.rows for span in spans))
    return case.attend(kernels, query, spans, case.cache(kernels), threads), case.reference(query, spans)


def check_company(case: Case | GroupedCase, kernels: ctypes.CDLL, times: int) -> None:
    """Rows have the same bits alone and together, in any order, with any number of threads."""
    cache = case.cache(kernels)
    starts = (0, 5, 300, 255, 256, 31, 700, 1, 77, 512, 400, 780) * times
    spans = spans_of(case, [(1, start, False) for start in starts])
    query = case.queries(len(spans))
    alone = torch.cat(
        [case.attend(kernels, query[i : i + 1], [span], cache, 1 + i % 3) for i, span in enumerate(spans)]
    )
    for threads in (1, 2, 7):
        assert torch.equal(case.attend(kernels, query, spans, cache, threads), alone)
    backwards = case.attend(kernels, query.flip(0), spans[::-1], cache, 2)
    assert torch.equal(backwards.flip(0), alone)


def check_broken_row(case: Case | GroupedCase, kernels: ctypes.CDLL) -> None:
    """A NaN in one sequence's query affects no other sequence."""
    cache = case.cache(kernels)
    spans = spans_of(case, [(1, 20, False), (1, 30, False), (8, 3, True), (6, 0, True)])
    query = case.queries(16)
    wanted = case.attend(kernels, query, spans, cache)
    query[1], query[2:10] = float("nan"), float("nan")
    got = case.attend(kernels, query, spans, cache)
    assert torch.equal(got[:1], wanted[:1])
    assert torch.equal(got[10:], wanted[10:])
    assert got[1:10].isnan().all()

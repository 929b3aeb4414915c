"""Scaling preserves a trace's prefixes."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.virtual.workload.columns import Row, TraceRequest, columns_of
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.reshaping import Scaling
from tests.cases.traces import CHAT, written
from tests.virtual.workload.traces import listed

BLOCK = 512
FACTORS = st.floats(1 / BLOCK, 20)
PROMPTS = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=6)


def requests_of(prompts: list[tuple[int, bool]]) -> list[TraceRequest]:
    """Requests at seconds 0, 1, ..., in two families: all of one share their prefix, as far as their full blocks
    reach.
    """
    rows: list[Row] = []
    for number, (tokens, family) in enumerate(prompts):
        whole, rest = divmod(tokens, BLOCK)
        rows.append((float(number), tokens, tokens, [*range(family, 2 * whole, 2), *([1000 + number] if rest else [])]))
    return list(columns_of(rows).requests())


def scaled(requests: list[TraceRequest], scaling: Scaling) -> list[TraceRequest]:
    """The same, scaled."""
    return list(scaling.apply(columns_of([request[:4] for request in requests]), BLOCK).requests())


def shared(one: TraceRequest, other: TraceRequest, block: int) -> int:
    """Tokens of the longest common prefix by the ids."""
    known = 0
    while known < min(len(one.blocks), len(other.blocks)) and one.blocks[known] == other.blocks[known]:
        known += 1
    return min(known * block, one.prompt_tokens, other.prompt_tokens)


@given(PROMPTS, FACTORS)
def test_the_share_that_two_prompts_have_in_common_stays(prompts: list[tuple[int, bool]], factor: float) -> None:
    scaling = Scaling(prompt=factor)
    block = scaling.block_tokens(BLOCK)
    before = requests_of(prompts)
    after = scaled(before, scaling)
    assert [request.blocks for request in after] == [request.blocks for request in before]
    for (one, two), (one_scaled, two_scaled) in zip(combinations(before, 2), combinations(after, 2), strict=True):
        assert shared(one_scaled, two_scaled, block) * BLOCK == shared(one, two, BLOCK) * block


@given(PROMPTS, FACTORS)
def test_ids_still_fit_the_lengths(prompts: list[tuple[int, bool]], factor: float) -> None:
    scaling = Scaling(prompt=factor)
    block = scaling.block_tokens(BLOCK)
    for request in scaled(requests_of(prompts), scaling):
        assert request.prompt_tokens >= 1
        assert len(request.blocks) == -(-request.prompt_tokens // block)


@given(PROMPTS, FACTORS, FACTORS, FACTORS)
def test_the_factors_do_not_mix(prompts: list[tuple[int, bool]], rate: float, prompt: float, output: float) -> None:
    before = requests_of(prompts)
    after = scaled(before, Scaling(rate, prompt, output))
    assert [r.arrival_s for r in after] == [r.arrival_s / rate for r in before]
    assert [r.prompt_tokens for r in after] == [r.prompt_tokens for r in scaled(before, Scaling(prompt=prompt))]
    assert [r.output_tokens for r in after] == [max(1, round(r.output_tokens * output)) for r in before]


@given(st.lists(st.integers(1, 10_000), min_size=1), FACTORS, FACTORS)
def test_longer_never_makes_shorter(lengths: list[int], one: float, other: float) -> None:
    low, high = sorted((one, other))
    requests = requests_of([(tokens, False) for tokens in lengths])
    for a, b in zip(scaled(requests, Scaling(prompt=low)), scaled(requests, Scaling(prompt=high)), strict=True):
        assert a.prompt_tokens <= b.prompt_tokens


def test_without_ids_lengths_scale_exactly() -> None:
    columns = columns_of([(0.0, 100, 10, ()), (1.0, 1, 1, ())])
    half = Scaling(prompt=0.333, output=0.5).apply(columns, None)
    assert half.prompt_tokens.tolist() == [33, 1]
    assert half.output_tokens.tolist() == [5, 1]


@pytest.mark.nightly("tests/virtual/workload/test_scaling.py::test_the_share_that_two_prompts_have_in_common_stays")
def test_an_opened_trace_is_scaled_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT, "chat")
    workload = open_workload(path, rate=2, length=0.25, output_length=3)
    assert workload.block_tokens == 128
    assert workload.duration_s == 1.25
    assert workload.name == "chat, rate × 2, prompts × 0.25, answers × 3"
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in listed(workload)] == [
        (0.0, 256 + 69, 15),
        (0.5, 256, 18),
        (0.5, 25, 21),
        (1.25, 384 + 116, 24),
    ]
    only_prompts = open_workload(path, prompt_length=2)
    assert listed(only_prompts)[0][1:3] == (2600, 5)
    with pytest.raises(ConfigError, match="factor of rate"):
        Scaling(rate=0)
    with pytest.raises(ConfigError, match="leave nothing"):
        Scaling(prompt=0.0009).block_tokens(512)

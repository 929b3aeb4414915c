"""Costs of prompts, and reproducible draws."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.core.route_decision import PrefillCost
from serving.gateway.core.router import draw, two_of

R1 = PrefillCost(14_616.0)


def test_a_long_prompt_costs_more_per_token_and_cached_tokens_are_looked_back_at() -> None:
    assert R1.tokens(100) == 100
    assert R1.tokens(14_616) == 14_616 * 3 // 2
    assert R1.tokens(1000, cached=14_616) == 2000 + round(1000 * 500 / 14_616)
    assert R1.tokens(0, cached=10_000) == 0
    assert PrefillCost().tokens(100_000, cached=5) == 100_000


@given(st.integers(0, 100_000), st.integers(0, 100_000), st.integers(1, 100_000))
def test_chunks_cost_together_what_the_prompt_costs(cached: int, first: int, second: int) -> None:
    whole = R1.tokens(first + second, cached)
    assert R1.tokens(first, cached) + R1.tokens(second, cached + first) == pytest.approx(whole, abs=2)


def test_draws_are_even_and_the_same_every_time() -> None:
    drawn = [draw(7, n, 5) for n in range(5000)]
    assert drawn == [draw(7, n, 5) for n in range(5000)]
    assert all(count == pytest.approx(1000, abs=120) for count in Counter(drawn).values())
    assert drawn != [draw(8, n, 5) for n in range(5000)]


@given(st.integers(2, 50), st.integers(0, 2**32), st.integers(0, 2**40))
def test_two_are_two(count: int, seed: int, counter: int) -> None:
    first, second = two_of(count, seed, counter)
    assert first != second
    assert {first, second} <= set(range(count))


def test_all_pairs_come_up_alike() -> None:
    pairs = Counter(tuple(sorted(two_of(4, 3, n))) for n in range(6000))
    assert len(pairs) == 6
    assert all(count == pytest.approx(1000, abs=120) for count in pairs.values())

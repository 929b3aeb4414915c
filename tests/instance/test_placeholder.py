"""Placeholder prompts, tokens and acceptance: the same values wherever they are computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.instance.core.placeholder import (
    PlaceholderPrompt,
    placeholder_token,
    rate_of,
    steps_for,
    tokens_after,
)

SEEDS = st.integers(0, 2**64 - 1)
RATES = st.floats(0.0, 1.0)


@given(st.integers(0, 50), st.integers(-60, 60) | st.none(), st.integers(-60, 60) | st.none())
def test_a_placeholder_prompt_is_cut_like_a_list(length: int, start: int | None, stop: int | None) -> None:
    prompt = PlaceholderPrompt(length)
    assert len(prompt[start:stop]) == len(([0] * length)[start:stop])
    assert list(prompt) == [0] * length


def test_a_placeholder_prompt_ends_where_it_ends() -> None:
    assert PlaceholderPrompt(3)[-1] == 0
    with pytest.raises(IndexError):
        PlaceholderPrompt(3)[3]


def test_tokens_follow_from_seed_and_position() -> None:
    first = [placeholder_token(7, n, 100) for n in range(1000)]
    assert first == [placeholder_token(7, n, 100) for n in range(1000)]
    assert first != [placeholder_token(8, n, 100) for n in range(1000)]
    assert set(first) == set(range(100))


@given(SEEDS, st.integers(1, 2000), st.integers(0, 3), RATES)
def test_every_step_gives_at_least_one_token_and_no_more_than_were_drafted(
    seed: int, limit: int, drafts: int, rate: float
) -> None:
    extra = rate_of(seed, limit, drafts, rate)
    assert 0.0 <= extra <= drafts
    produced = 0
    for step in range(1, 40):
        gained = tokens_after(step, extra) - produced
        assert 1 <= gained <= drafts + 1
        produced += gained
        assert steps_for(produced, extra) == step


def test_the_mean_is_the_acceptance_rate() -> None:
    for drafts, rate, mean in ((1, 0.7, 0.7), (2, 0.7, 0.7 + 0.49), (0, 0.7, 0.0), (3, 1.0, 3.0)):
        rates = [rate_of(seed, 256, drafts, rate) for seed in range(2000)]
        assert sum(rates) / len(rates) == pytest.approx(mean, abs=0.01)


def test_short_answers_vary_more_than_long_ones() -> None:
    def spread(limit: int) -> float:
        rates = [rate_of(seed, limit, 1, 0.7) for seed in range(2000)]
        return max(rates) - min(rates)

    assert spread(10) > 3 * spread(1000)

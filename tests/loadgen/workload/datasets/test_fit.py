"""Lengths made to fit a model: scaled alike, clipped at the end of the prompt, and counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.datasets import Fit, Tally


def test_scaling_rounds_to_the_nearest_and_keeps_one_token() -> None:
    fit = Fit(length_scale=1 / 32)
    assert [fit.scaled(tokens) for tokens in (0, 1, 47, 48, 512)] == [1, 1, 1, 2, 16]


def test_what_fits_is_left_alone() -> None:
    fit = Fit(max_model_tokens=100)
    assert fit.clipped(90, 10, 16) == (90, 10)


def test_a_prompt_loses_its_end_in_whole_blocks() -> None:
    fit = Fit(max_model_tokens=100)
    assert fit.clipped(95, 10, 16) == (80, 10)  # room for 90: five blocks of 16
    assert fit.clipped(95, 90, 16) == (10, 90)  # not one block has room: what there is
    assert fit.clipped(5, 500) == (1, 99)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(2, 5_000), st.integers(1, 64))
def test_clipped_lengths_always_fit(input_tokens: int, output_tokens: int, room: int, block: int) -> None:
    clipped = Fit(max_model_tokens=room).clipped(input_tokens, output_tokens, block)
    assert sum(clipped) <= room
    assert 1 <= clipped[0] <= input_tokens
    assert 1 <= clipped[1] <= output_tokens


def test_texts_fit_or_do_not() -> None:
    assert Fit(max_model_tokens=10).fits(10)
    assert not Fit(max_model_tokens=10).fits(11)
    assert Fit().fits(10**9)


@pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan")])
def test_a_scale_must_be_above_0(scale: float) -> None:
    with pytest.raises(UsageError, match="length scale"):
        Fit(length_scale=scale)


def test_a_model_needs_room_for_two_tokens() -> None:
    with pytest.raises(UsageError, match="no room"):
        Fit(max_model_tokens=1)


def test_the_tally_speaks_only_if_there_is_something_to_say() -> None:
    assert Tally(taken=5).warnings() == []
    (left_out,) = Tally(taken=5, left_out=3).warnings()
    assert left_out.startswith("3 entries")

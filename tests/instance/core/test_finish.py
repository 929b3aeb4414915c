"""The stop rules."""

from hypothesis import given
from hypothesis import strategies as st

from serving.instance.core.finish import accept_tokens, finish_reason_after
from serving.values.sequence import FinishReason, SamplingParams

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def reason(token: int, output: int, total: int, min_tokens: int = 0) -> FinishReason | None:
    sampling = SamplingParams(max_tokens=5, min_tokens=min_tokens)
    return finish_reason_after(token, output, total, sampling, {9}, 20)


def test_a_stop_token_wins_over_a_length_reached_with_it() -> None:
    assert reason(9, 5, 20) is STOP
    assert reason(8, 5, 10) is LENGTH
    assert reason(8, 2, 20) is LENGTH
    assert reason(8, 4, 19) is None


def test_a_stop_token_does_not_count_before_min_tokens_are_out() -> None:
    assert reason(9, 3, 10, min_tokens=3) is None
    assert reason(9, 4, 10, min_tokens=3) is STOP
    assert reason(9, 1, 10, min_tokens=0) is STOP
    assert reason(9, 5, 10, min_tokens=5) is LENGTH


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 4), st.integers(0, 3))
def test_several_tokens_at_once_end_where_single_ones_would(sampled: list[int], before: int, min_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=6, min_tokens=min_tokens)
    accepted = accept_tokens(tuple(sampled), before, 10 + before, sampling, {9}, 14)
    expected: list[int] = []
    end = None
    for token in sampled:
        expected.append(token)
        output = before + len(expected)
        end = finish_reason_after(token, output, 10 + output, sampling, {9}, 14)
        if end is not None:
            break
    assert (accepted.tokens, accepted.finish_reason) == (tuple(expected), end)

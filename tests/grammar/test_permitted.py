"""Tokens that a request allows or forbids by name."""

import numpy as np

from serving.grammar.matcher import limits_tokens, permitted
from serving.values.sequence import SamplingParams


def found(output: list[int], **fields: tuple[object, ...]) -> list[int]:
    sampling = SamplingParams(**fields)  # type: ignore[arg-type]
    assert limits_tokens(sampling)
    return np.flatnonzero(permitted(sampling, output, 8)).tolist()


def test_a_plain_request_names_none() -> None:
    assert not limits_tokens(SamplingParams())
    assert permitted(SamplingParams(), [1], 8).all()


def test_only_allowed_tokens_are_left() -> None:
    assert found([3], allowed_token_ids=(1, 6)) == [1, 6]
    assert found([3], allowed_token_ids=(1, 6), bad_words=((6,),)) == [1]
    assert found([3], allowed_token_ids=(1, 6)) == [1, 6], "what is kept of the list is left alone"


def test_the_end_of_a_forbidden_word_is_forbidden_behind_its_beginning_only() -> None:
    words = ((5,), (1, 2), (1, 1, 3))
    assert found([], bad_words=words) == [0, 1, 2, 3, 4, 6, 7]
    assert found([1], bad_words=words) == [0, 1, 3, 4, 6, 7]
    assert found([4, 1, 1], bad_words=words) == [0, 1, 4, 6, 7]
    assert found([1, 1, 4], bad_words=words) == [0, 1, 2, 3, 4, 6, 7]

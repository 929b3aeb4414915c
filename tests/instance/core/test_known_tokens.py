"""Prompt and output as one sequence, without copies."""

import pytest

from serving.instance.core.placeholder import PlaceholderPrompt
from serving.instance.core.sequence import KnownTokens


def test_any_span_and_slice_is_that_of_the_list_it_stands_for() -> None:
    tokens, plain = KnownTokens((1, 2, 3, 4), [5, 6, 7]), [1, 2, 3, 4, 5, 6, 7]
    for start in range(8):
        for stop in range(start, 8):
            assert list(tokens.span(start, stop)) == plain[start:stop]
    for cut in (slice(None), slice(-3, None), slice(5, 2), slice(0, 7, 2), slice(None, None, -1), slice(1, 99)):
        assert list(tokens[cut]) == plain[cut]
    with pytest.raises(IndexError):
        tokens[7]


def test_a_span_of_a_long_prompt_is_cut_without_copying_the_rest() -> None:
    prompt = PlaceholderPrompt(1 << 40)
    tokens = KnownTokens(prompt, [9])
    assert len(tokens.span(0, 1 << 40)) == 1 << 40
    assert list(tokens.span((1 << 40) - 2, (1 << 40) + 1)) == [0, 0, 9]
    assert len(prompt[5:2]) == 0
    assert len(prompt[0:10:3]) == 4

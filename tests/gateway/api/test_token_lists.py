"""`allowed_token_ids` and `bad_words`: what reaches the sequence, and what is refused."""

from typing import Any

import pytest

from serving.gateway.api.sampling import MAX_ALLOWED_TOKENS, MAX_BAD_WORD, MAX_BAD_WORDS
from serving.values.sequence import SamplingParams
from tests.gateway.api.errors import check
from tests.gateway.api.support import Harness, chat, complete


def test_both_endpoints_take_them(harness: Harness) -> None:
    for send in (chat, complete):
        harness.backend.jobs.clear()
        assert send(harness.app, allowed_token_ids=[9, 7, 9], bad_words=["dog"]).status_code == 200
        sampling: SamplingParams = harness.backend.jobs[0].sequences[0].sampling
        encode = harness.model.tokenizer.encode
        alone, behind = (tuple(encode(text, add_special_tokens=False)) for text in ("dog", " dog"))
        assert sampling.allowed_token_ids == (7, 9)
        assert sampling.bad_words[0] == alone
        assert sampling.bad_words[1:] == ((behind,) if len(behind) == len(alone) else ())


def test_blanks_before_a_word_do_not_count_and_empty_lists_are_none(harness: Harness) -> None:
    chat(harness.app, bad_words=["  dog", "dog"], allowed_token_ids=[])
    first = harness.backend.jobs[0].sequences[0].sampling
    half = len(first.bad_words) // 2
    assert first.bad_words[:half] == first.bad_words[half:]
    assert first.allowed_token_ids == ()
    chat(harness.app, bad_words=[])
    assert harness.backend.jobs[1].sequences[0].sampling.bad_words == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": list(range(MAX_ALLOWED_TOKENS + 1))}, "allowed_token_ids"),
        ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["  "]}, "bad_words"),
        ({"bad_words": ["x" * (MAX_BAD_WORD + 1)]}, "bad_words"),
        ({"bad_words": ["x"] * (MAX_BAD_WORDS + 1)}, "bad_words"),
        ({"bad_words": [3]}, "bad_words[0]"),
    ],
)
def test_what_cannot_be_is_refused(harness: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(harness.app, **fields), 400, param)
    assert harness.backend.jobs == []

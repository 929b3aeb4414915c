"""Limits on choices, log-probabilities and lists of tokens per request."""

from typing import Any

import pytest

from serving.gateway.api.sampling import MAX_ALLOWED_TOKENS, MAX_BAD_WORD, MAX_BAD_WORDS
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.values.sequence import SamplingParams
from tests.gateway.api.support import Harness, chat, check, complete


@pytest.fixture
def small(served: ServedModel) -> Harness:
    return Harness(served, ApiSettings(max_n=4, max_sequences=6, max_logprob_entries=1000))


def refusal(reply: Any, param: str, *words: str) -> None:
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    for word in words:
        assert word in error["message"], error["message"]


def test_what_is_too_many_is_named(small: Harness) -> None:
    refusal(chat(small.app, n=5), "n", "'n' requests 5", "at most 4", "max_n")
    refusal(complete(small.app, n=5, best_of=5), "n", "at most 4")
    refusal(complete(small.app, prompt=["a"] * 7), "prompt", "7 prompts", "at most 6", "max_request_sequences")
    refusal(complete(small.app, prompt=["a"] * 3, n=3), "n", "3 prompts times 'n' = 3 are 9", "at most 6")
    assert not small.backend.jobs
    assert len(complete(small.app, prompt=["a"] * 3, n=2).json()["choices"]) == 6


def test_by_default_as_many_as_openai(harness: Harness) -> None:
    assert len(chat(harness.app, n=128, max_tokens=1).json()["choices"]) == 128
    refusal(chat(harness.app, n=129, max_tokens=1), "n", "at most 128")


def test_log_probabilities_are_bounded(small: Harness) -> None:
    many = {"logprobs": True, "top_logprobs": 9}
    refusal(chat(small.app, **many, n=2, max_tokens=51), "top_logprobs", "1020", "at most 1000", "stream")
    assert chat(small.app, **many, n=2, max_tokens=50).status_code == 200
    assert chat(small.app, **many, n=2, max_tokens=51, stream=True).status_code == 200
    refusal(complete(small.app, logprobs=9, n=2, max_tokens=51), "logprobs", "1020")
    prompt = [5] * 100
    refusal(complete(small.app, prompt=prompt, prompt_logprobs=4, n=3), "prompt_logprobs", "1500", "fewer answers")
    refusal(complete(small.app, prompt=prompt, echo=True, logprobs=9, n=2, stream=True), "prompt_logprobs", "2000")
    assert complete(small.app, prompt=prompt, prompt_logprobs=4, n=1).status_code == 200


def test_an_answer_without_a_limit_counts_as_a_usual_one(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(max_logprob_entries=10_000))
    assert chat(harness.app, logprobs=True, top_logprobs=0).status_code == 200
    refusal(chat(harness.app, logprobs=True, top_logprobs=20, n=2), "top_logprobs")


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

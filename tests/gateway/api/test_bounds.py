"""A request may not ask for more answers or log-probabilities than are kept at once."""

from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel
from tests.gateway.api.support import Harness, chat, complete


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
    refusal(chat(small.app, n=5), "n", "'n' asks for 5", "at most 4", "max_n")
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

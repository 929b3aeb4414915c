"""Backends at the edges of their contract."""

import pytest

from serving.values.sequence import FinishReason, TokenLogprobs
from tests.fakes.backend import output
from tests.gateway.api.batches import play
from tests.gateway.api.support import Harness, chat, complete


def ids(harness: Harness, text: str) -> tuple[int, ...]:
    return tuple(harness.model.tokenizer.encode(text, add_special_tokens=False))


def test_news_that_cross_a_stop_are_dropped(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    more = output(ids(harness, " more"), finish_reason=FinishReason.LENGTH)
    batch = [output(ids(harness, "a dog")), more]
    backend = play(harness, monkeypatch, batch)
    answer = chat(harness.app, stop="dog").json()
    assert answer["choices"][0]["message"]["content"] == "a "
    assert answer["usage"]["completion_tokens"] == len(ids(harness, "a dog"))
    assert backend.stopped == [0]
    assert backend.cancelled == 0


def test_stop_string_in_the_last_update_needs_no_stop(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [output(ids(harness, "a dog"), finish_reason=FinishReason.LENGTH)]
    backend = play(harness, monkeypatch, batch)
    assert chat(harness.app, stop="dog").json()["choices"][0]["finish_reason"] == "stop"
    assert backend.stopped == []


def test_backend_that_ends_early_is_an_engine_error(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = play(harness, monkeypatch, [output(ids(harness, "a"))])
    assert chat(harness.app).status_code == 500
    assert backend.cancelled == 1


def test_finish_without_tokens_ends_the_choice(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    play(
        harness,
        monkeypatch,
        [output(ids(harness, "a"))],
        [output(finish_reason=FinishReason.LENGTH)],
    )
    choice = chat(harness.app).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", "length")


def test_impossible_tokens_have_a_finite_logprob(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    (token,) = ids(harness, "a")
    worst = TokenLogprobs(token, float("-inf"), ((token, float("-inf")),))
    done = output((token,), logprobs=(worst,), prompt_logprobs=(worst,), finish_reason=FinishReason.LENGTH)
    play(harness, monkeypatch, [done])
    entry = chat(harness.app, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0
    play(harness, monkeypatch, [done])
    choice = complete(harness.app, logprobs=1, prompt=[token, token], prompt_logprobs=0).json()["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["prompt_logprobs"][1][str(token)]["logprob"] == -9999.0

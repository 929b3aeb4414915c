"""Requests whose prompt nearly or completely fills the context: defaults are reduced, explicit values are not."""

from typing import Any

import pytest

from tests.gateway.api.support import MAX_MODEL_LEN, Harness, complete, post


def ids(short_of_the_end: int) -> list[int]:
    return [9] * (MAX_MODEL_LEN - short_of_the_end)


def limits(harness: Harness) -> list[int]:
    return [spec.sampling.max_tokens for spec in harness.backend.jobs[-1].sequences]


@pytest.mark.parametrize("room", [1, 4, 15, 16, 17])
def test_a_default_limit_gives_way(harness: Harness, room: int) -> None:
    assert complete(harness.app, prompt=ids(room)).status_code == 200
    assert limits(harness) == [min(16, room)]
    tokens = {"token_ids": ids(room), "sampling_params": {}}
    assert post(harness.app, "/inference/v1/generate", tokens).status_code == 200
    assert limits(harness) == [min(16, room)]
    rendered = post(harness.app, "/v1/completions/render", {"prompt": ids(room)}).json()
    assert [one["sampling_params"]["max_tokens"] for one in rendered] == [min(16, room)]


def test_each_prompt_of_a_batch_has_its_own_room(harness: Harness) -> None:
    assert complete(harness.app, prompt=[[9], ids(3), ids(100)], n=2).status_code == 200
    assert limits(harness) == [16, 16, 3, 3, 16, 16]


def test_a_full_context_leaves_nothing_to_say(harness: Harness) -> None:
    error = complete(harness.app, prompt=ids(0)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "you requested" not in error["message"]
    asked = complete(harness.app, prompt=ids(4), max_tokens=16).json()["error"]
    assert (asked["code"], asked["param"]) == ("context_length_exceeded", "max_tokens")
    assert "you requested 16" in asked["message"]


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"prompt_logprobs": 0}, {"stream": True}, {"n": 2}])
def test_a_prompt_that_fills_the_context_is_scored(harness: Harness, short: int, more: dict[str, Any]) -> None:
    reply = complete(harness.app, prompt=[[9], ids(short)], echo=True, max_tokens=0, **more)
    assert reply.status_code == 200, reply.text
    count = more.get("n", 1)
    assert limits(harness) == [1] * count + [min(1, short)] * count
    if not more.get("stream"):
        answer = reply.json()
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["choices"][-1]["finish_reason"] == "length"
        if "logprobs" in more:
            assert len(answer["choices"][1]["logprobs"]["token_logprobs"]) == MAX_MODEL_LEN - short


def test_one_token_more_than_the_context_is_refused(harness: Harness) -> None:
    assert complete(harness.app, prompt=ids(-1), echo=True, max_tokens=0).status_code == 400

"""Log-probabilities of the whole vocabulary, and of tokens that are named; and a chat that echoes its last message."""

from collections.abc import Callable
from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings
from tests.gateway.api.errors import check
from tests.gateway.api.support import Harness, chat, complete, events

VOCABULARY = 400
TOLD = {"logprobs": True, "max_tokens": 2}


def test_all_alternatives(harness: Harness) -> None:
    told = chat(harness.app, **TOLD, top_logprobs=-1, prompt_logprobs=-1).json()
    first = told["choices"][0]["logprobs"]["content"][0]
    assert len(first["top_logprobs"]) == VOCABULARY
    assert told["prompt_logprobs"][0] is None
    sampling = harness.backend.jobs[-1].sequences[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (VOCABULARY, VOCABULARY)
    told = complete(harness.app, logprobs=-1, max_tokens=2, echo=True).json()
    assert len(told["choices"][0]["logprobs"]["top_logprobs"]) > 2


def test_alternatives_that_are_named(harness: Harness) -> None:
    told = chat(harness.app, **TOLD, logprob_token_ids=[7, 5, 7], return_tokens_as_token_ids=True).json()
    for one in told["choices"][0]["logprobs"]["content"]:
        assert [top["token"] for top in one["top_logprobs"]] == ["token_id:7", "token_id:5"]
    sampling = harness.backend.jobs[-1].sequences[0].sampling
    assert (sampling.logprobs, sampling.logprob_ids, sampling.prompt_logprobs) == (0, (7, 5), None)
    told = complete(harness.app, logprobs=0, max_tokens=2, logprob_token_ids=[7], stream=True,
                    return_tokens_as_token_ids=True)  # fmt: skip
    first = events(told.text)[0]["choices"][0]["logprobs"]
    assert "token_id:7" in first["top_logprobs"][0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1, "stream": True}, "top_logprobs"),
        ({"prompt_logprobs": -1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprobs": True, "top_logprobs": 2, "logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": [VOCABULARY]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": list(range(129))}, "logprob_token_ids"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(refusing: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(refusing.app, **fields), 400, param)
    assert not refusing.backend.jobs


def test_an_answer_that_would_be_too_large(make_harness: Callable[[ApiSettings], Harness]) -> None:
    small = make_harness(ApiSettings(max_logprob_entries=2 * VOCABULARY + 2))
    assert chat(small.app, **TOLD, top_logprobs=-1).status_code == 200
    check(
        chat(small.app, **{**TOLD, "max_tokens": 3}, top_logprobs=-1), 400, "top_logprobs", text="max_logprob_entries"
    )
    check(complete(small.app, prompt=[5, 6, 7], prompt_logprobs=-1), 400, "prompt_logprobs", text="max_logprob_entries")


def test_a_chat_begins_with_the_message_that_it_goes_on_with(harness: Harness) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So: "}]
    fields: dict[str, Any] = {"messages": turns, "continue_final_message": True, "echo": True}
    assert chat(harness.app, **fields).json()["choices"][0]["message"]["content"] == "So: Once upon a time"
    deltas = [
        one["choices"][0]["delta"].get("content", "")
        for one in events(chat(harness.app, **fields, stream=True).text)[:-1]
    ]
    assert "".join(deltas) == "So: Once upon a time"
    plain = chat(harness.app, **{**fields, "echo": False}).json()
    assert plain["choices"][0]["message"]["content"] == "Once upon a time"
    user = chat(harness.app, messages=turns[:1], echo=True).json()
    assert user["choices"][0]["message"]["content"] == "Once upon a time"

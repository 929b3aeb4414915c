"""Anthropic's clients read `request-id` and an error's `request_id`: every response below /v1/messages has them."""

from typing import Any

import anthropic
import httpx
import pytest

from serving.errors import EngineError, OverloadedError
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.gateway.api.support import Harness, chat, named_events, post, request

HI: dict[str, Any] = {"max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/messages"


def same(reply: httpx.Response) -> str:
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    return reply.headers["request-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_answers_have_it(harness: Harness, stream: bool) -> None:
    assert same(post(harness.app, PATH, {**HI, "stream": stream})).startswith("req-")
    assert same(post(harness.app, PATH, {**HI, "stream": stream}, headers={"x-request-id": "mine"})) == "mine"
    assert "request-id" not in chat(harness.app).headers


def test_errors_have_it_twice(harness: Harness, served: ServedModel) -> None:
    """For errors of the route, the body's reader, the application, the keys, the backend, and a bug."""
    closed = Harness(served, ApiSettings(api_key_hashes=(hash_api_key("one"),)))
    replies = [
        post(harness.app, PATH, {**HI, "model": "no"}),
        post(harness.app, PATH, {"messages": []}),
        post(harness.app, PATH, None, content=b"{"),
        post(harness.app, f"{PATH}/count_tokens", {}),
        post(harness.app, f"{PATH}/batches", {}),
        request(harness.app, "GET", PATH),
        post(closed.app, PATH, HI),
    ]
    harness.backend.refuse = OverloadedError("full", retry_after_s=2)
    replies.append(post(harness.app, PATH, HI))
    harness.backend.refuse = ZeroDivisionError("a bug")
    replies.append(post(harness.app, PATH, HI))
    assert [reply.status_code for reply in replies] == [404, 400, 415, 400, 404, 405, 401, 529, 500]
    for reply in replies:
        assert reply.json()["request_id"] == same(reply)
    assert "request_id" not in chat(harness.app).json()


def test_a_stream_that_fails_tells_it(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    reply = post(harness.app, PATH, {**HI, "stream": True})
    assert named_events(reply.text)[-1]["request_id"] == same(reply)


def test_anthropics_client_reads_it(shared: tuple[Harness, str]) -> None:
    _, url = shared
    client = anthropic.Anthropic(base_url=url, api_key="key", max_retries=0)
    answer = client.messages.create(model="tiny", **HI)
    assert answer._request_id is not None
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="no", **HI)
    assert refused.value.request_id is not None
    assert refused.value.body["request_id"] == refused.value.request_id

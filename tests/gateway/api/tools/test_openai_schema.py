"""Every response of OpenAI's routes against the schemas that OpenAI publishes, which strict clients enforce."""

from typing import Any

import pytest

from serving.errors import EngineError, OverloadedError
from tests.gateway.api.published import check
from tests.gateway.api.support import Harness, chat, complete, events, named_events, post, request

TOOL = {
    "name": "x",
    "description": "X.",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
}
SAID = '<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n{"name": "x", "arguments": {"a": "b"}}\n</tool_call>'


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **more}


CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "seed": 5, "user": "me"},
    {"logprobs": True, "top_logprobs": 2},
    {"max_tokens": 2},
    {"stop": "upon"},
    {"tools": [{"type": "function", "function": TOOL}]},
    {"functions": [TOOL]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TOOL["parameters"]}}},
]
RESPONSES: list[dict[str, Any]] = [
    {},
    {"user": "me", "prompt_cache_key": "mine", "metadata": {"a": "b"}, "store": False, "truncation": "auto"},
    {"instructions": "Be brief.", "max_output_tokens": 2},
    {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2},
    {"tools": [{"type": "function", **TOOL, "strict": False}], "parallel_tool_calls": False},
    {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "json_object"}}},
]


@pytest.fixture(params=["plain", "calls"])
def speaker(request: pytest.FixtureRequest, caller: Harness) -> Harness:
    caller.script_of = lambda _: caller.say("Once upon a time" if request.param == "plain" else SAID)
    return caller


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_chat(speaker: Harness, fields: dict[str, Any]) -> None:
    check("CreateChatCompletionResponse", chat(speaker.app, **fields).json())
    options = {"stream_options": {"include_usage": True}}
    *chunks, _ = events(chat(speaker.app, **fields, stream=True, **options).text)
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2, "logprobs": 1}, {"echo": True, "logprobs": 0, "max_tokens": 0}], ids=str
)
def test_completions(harness: Harness, fields: dict[str, Any]) -> None:
    """OpenAI itself sends null before the end, and for the first token of an echo, despite its schema."""
    *chunks, _ = events(complete(harness.app, **fields, stream=True).text)
    for answer in (complete(harness.app, **fields).json(), *chunks):
        for choice in answer["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
            for values in (choice["logprobs"] or {}).values():
                values[:] = [value for value in values if value is not None]
        check("CreateCompletionResponse", answer)


@pytest.mark.parametrize("fields", RESPONSES, ids=str)
def test_responses(speaker: Harness, fields: dict[str, Any]) -> None:
    whole = post(speaker.app, "/v1/responses", asked(**fields))
    assert whole.status_code == 200, whole.text
    check("Response", whole.json())
    shown = named_events(post(speaker.app, "/v1/responses", asked(**fields, stream=True)).text)
    for event in shown:
        check("ResponseStreamEvent", event)
        if "response" in event:
            check("Response", event["response"])
    if fields.get("store") is not False:
        name = whole.json()["id"]
        check("Response", request(speaker.app, "GET", f"/v1/responses/{name}").json())
        check("ResponseItemList", request(speaker.app, "GET", f"/v1/responses/{name}/input_items").json())
        check("Response", post(speaker.app, "/v1/responses", asked(**fields, previous_response_id=name)).json())


def test_a_response_that_fails(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    shown = named_events(post(harness.app, "/v1/responses", asked(stream=True)).text)
    assert shown[-1]["type"] == "response.failed"
    for event in shown:
        check("ResponseStreamEvent", event)


def test_models_and_errors(harness: Harness) -> None:
    check("ListModelsResponse", request(harness.app, "GET", "/v1/models").json())
    harness.backend.refuse = OverloadedError("full", retry_after_s=2)
    for reply in (
        chat(harness.app),
        chat(harness.app, model="no"),
        complete(harness.app, n=0),
        post(harness.app, "/v1/responses", asked(previous_response_id="resp_1")),
        request(harness.app, "GET", "/v1/none"),
        request(harness.app, "GET", "/v1/completions"),
    ):
        check("ErrorResponse", reply.json())

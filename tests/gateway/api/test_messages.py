"""Anthropic's Messages API: translation, event order, counts, errors. Anthropic's types check every shape."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from serving.errors import DeadlineError, EngineError, OverloadedError, UnavailableError
from serving.gateway.api.settings import ApiSettings, hash_api_key
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, chat, named_events, post, request

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def ask(harness: Harness, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    """Send a request with sensible defaults; None removes a field."""
    body = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], **fields}
    return post(harness.app, path, {key: value for key, value in body.items() if value is not None})


def count(harness: Harness, **fields: Any) -> int:
    reply = ask(harness, "/v1/messages/count_tokens", **{"max_tokens": None, **fields})
    return MessageTokensCount.model_validate(reply.json(), strict=True).input_tokens


def message(reply: httpx.Response) -> Message:
    assert reply.status_code == 200, reply.text
    return Message.model_validate(reply.json())


def stream(reply: httpx.Response) -> list[Any]:
    return named_events(reply.text)


def refused(reply: httpx.Response, status: int, kind: str) -> str:
    assert reply.status_code == status, reply.text
    body = reply.json()
    if kind != "request_too_large":  # which their own types leave out
        ErrorResponse.model_validate(body)
    error = {"type": kind, "message": body["error"]["message"]}
    assert body == {"type": "error", "error": error, "request_id": reply.headers["request-id"]}
    return str(body["error"]["message"])


def test_a_whole_answer(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon a time", cached_tokens=3)
    reply = ask(harness)
    whole = message(reply)
    assert whole.id.startswith("msg_")
    assert [block.text for block in whole.content if block.type == "text"] == ["Once upon a time"]
    assert (whole.stop_reason, whole.stop_sequence, whole.model) == ("end_turn", None, "tiny")
    usage = whole.usage
    assert usage.cache_read_input_tokens == 3
    assert usage.input_tokens + 3 == count(harness)
    assert usage.output_tokens == len(harness.say("Once upon a time").tokens)
    assert "masked_tokens" not in reply.json()["usage"]


def test_tokens_without_some_experts_are_told(harness: Harness) -> None:
    harness.script_of = lambda _: replace(harness.say("Once upon a time"), masked=4)
    assert ask(harness).json()["usage"]["masked_tokens"] == 4
    assert stream(ask(harness, stream=True))[-2]["usage"]["masked_tokens"] == 4


def test_a_stream_has_anthropics_order(harness: Harness) -> None:
    reply = ask(harness, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    shown = stream(reply)
    for one in shown:
        if one["type"] != "ping":
            EVENT.validate_python(one)
    names = [one["type"] for one in shown]
    deltas = names.count("content_block_delta")
    assert deltas > 1
    assert names == [
        "message_start", "content_block_start", "ping", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(one["delta"]["text"] for one in shown if one["type"] == "content_block_delta") == "Once upon a time"
    assert shown[0]["message"]["content"] == []
    assert shown[0]["message"]["usage"]["input_tokens"] == count(harness)
    assert shown[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert shown[-2]["usage"]["output_tokens"] == len(harness.say("Once upon a time").tokens)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_empty_answer_has_no_block(harness: Harness, streamed: bool) -> None:
    harness.script_of = lambda _: harness.say("")
    reply = ask(harness, stream=streamed)
    if streamed:
        assert [one["type"] for one in stream(reply)] == ["message_start", "message_delta", "message_stop"]
    else:
        assert message(reply).content == []


def test_reasons_to_stop(harness: Harness) -> None:
    cut = message(ask(harness, max_tokens=2))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = message(ask(harness, stop_sequences=["upon", "xyz"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "upon")
    assert [block.text for block in stopped.content if block.type == "text"] == ["Once "]
    harness.script_of = lambda _: harness.say("a dog " * MAX_MODEL_LEN, end=False)
    full = message(ask(harness, max_tokens=32_000))
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.output_tokens == MAX_MODEL_LEN - full.usage.input_tokens


def test_the_same_conversation_as_in_chat(harness: Harness) -> None:
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"},
         {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes?"}]},
        {"role": "user", "content": "a story"},
    ]  # fmt: skip
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    ask(harness, system=blocks, messages=turns, metadata={"user_id": "u"}, **fields)
    chat(
        harness.app,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi\nthere"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "a story"},
        ],
        max_tokens=50,
        seed=harness.backend.jobs[-1].sequences[0].sampling.seed,
        **fields,
    )
    ours, theirs = (job.sequences[0] for job in harness.backend.jobs)
    assert (ours.prompt, ours.sampling) == (theirs.prompt, theirs.sampling)
    assert count(harness, system=blocks, messages=turns) == len(ours.prompt)


def test_an_assistants_last_turn_is_gone_on_with(harness: Harness) -> None:
    for content in ("Once upon", [{"type": "text", "text": "Once upon"}]):
        ask(harness, messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}])
        assert harness.prompt().endswith("<|assistant|>Once upon")


def test_a_billing_line_is_not_part_of_the_prompt(harness: Harness) -> None:
    blocks = [{"type": "text", "text": f"x-anthropic-billing-header: cch={n};"} for n in range(1)]
    ask(harness, system=[*blocks, {"type": "text", "text": "Be brief."}])
    assert "billing" not in harness.prompt()
    assert "Be brief." in harness.prompt()


def test_what_claude_code_sends_along_is_accepted(harness: Harness) -> None:
    reply = request(
        harness.app,
        "POST",
        "/v1/messages?beta=true",
        json={
            "model": "tiny", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "user_1"}, "tools": [],
            "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": None}]}],
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "temperature": 1,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"},
    )  # fmt: skip
    assert stream(reply)[-1] == {"type": "message_stop"}
    assert "x-cloudmatrix-warning" not in reply.headers
    assert request(harness.app, "HEAD", "/").status_code == 200
    betas: dict[str, Any] = {"task_budget": {"total": 9}, "diagnostics": {}, "thread": {"id": "a"}, "speed": "fast"}
    assert ask(harness, **betas).headers["x-cloudmatrix-warning"] == f"ignored fields: {', '.join(betas)}"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "smell", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
         "messages[0].content[0].input"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]},
         "messages[0].content[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [1]}]}]},
         "messages[0].content[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 5}]}]},
         "messages[0].content[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, "messages[0].content[0].thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"system": ["a"]}, "system[0]"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"tools": [5]}, "tools[0]"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0]"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(harness: Harness, fields: dict[str, Any], named: str) -> None:
    assert f"'{named}'" in refused(ask(harness, **fields), 400, "invalid_request_error")
    assert not harness.backend.jobs


def test_tools_may_ride_along_unused(harness: Harness) -> None:
    message(ask(harness, tools=[{"name": "a", "input_schema": {}}], tool_choice={"type": "none"}))


@pytest.mark.parametrize("text", ["a dog " * MAX_MODEL_LEN, "a dog " * 40_000])
def test_a_prompt_that_is_too_long_says_so_in_words_that_agents_know(harness: Harness, text: str) -> None:
    turns = [{"role": "user", "content": text}]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = ask(harness, path, messages=turns, **({"max_tokens": None} if "count" in path else {}))
        if reply.status_code != 200:
            words = refused(reply, 400, "invalid_request_error")
            found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", words)
            assert found is not None, words
            assert int(found[1]) > int(found[2]) >= MAX_MODEL_LEN - 1
        else:
            assert path.endswith("count_tokens")


def test_errors_are_anthropics_below_their_paths_alone(harness: Harness) -> None:
    assert "json" in refused(post(harness.app, "/v1/messages", None, content=b"{", headers=JSON), 400, BAD).lower()
    refused(post(harness.app, "/v1/messages", None, content=b"{}"), 415, BAD)
    refused(ask(harness, model="claude"), 404, "not_found_error")
    refused(request(harness.app, "GET", "/v1/messages"), 405, BAD)
    refused(request(harness.app, "POST", "/v1/messages/batches"), 404, "not_found_error")
    for error, status, kind in (
        (OverloadedError("full", retry_after_s=2), 529, "overloaded_error"),
        (UnavailableError("nobody"), 503, "api_error"),
        (DeadlineError("late"), 408, "timeout_error"),
        (EngineError("x"), 500, "api_error"),
    ):
        harness.backend.refuse = error
        reply = ask(harness)
        refused(reply, status, kind)
        if status == 529:
            assert reply.headers["retry-after"] == "2"
            assert chat(harness.app).status_code == 429


BAD = "invalid_request_error"
JSON = {"content-type": "application/json"}


def test_a_body_that_is_too_large(make_harness: Callable[[ApiSettings], Harness]) -> None:
    small = make_harness(ApiSettings(max_body_bytes=100))
    refused(ask(small, system="x" * 100), 413, "request_too_large")


def test_keys_in_either_header(make_harness: Callable[[ApiSettings], Harness]) -> None:
    closed = make_harness(ApiSettings(api_key_hashes=(hash_api_key("one"),)))
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    for headers, status in (
        ({"x-api-key": "one"}, 200),
        ({"authorization": "Bearer one"}, 200),
        ({"x-api-key": "two"}, 401),
        ({}, 401),
        ({"authorization": "Bearer two", "x-api-key": "one"}, 401),
    ):
        reply = post(closed.app, "/v1/messages", body, headers=headers)
        assert reply.status_code == status
        if status == 401:
            refused(reply, 401, "authentication_error")
    assert request(closed.app, "GET", "/v1/models", headers={"x-api-key": "one"}).status_code == 200
    assert request(closed.app, "HEAD", "/").status_code == 200
    assert request(closed.app, "GET", "/").status_code == 404


def test_a_failure_within_a_stream_is_its_last_event(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    *_, last = stream(ask(harness, stream=True))
    assert last["type"] == "error"
    assert ErrorResponse.model_validate(last).error.type == "api_error"

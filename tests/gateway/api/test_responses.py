"""OpenAI's Responses API: translation, bad input, and requests exactly as agents send them."""

from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from serving.errors import EngineError, OverloadedError
from serving.gateway.api.settings import ApiSettings, ServedModel
from tests.fakes.backend import Script
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, chat, check, named_events, post

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def ask(harness: Harness, **fields: Any) -> httpx.Response:
    return post(harness.app, "/v1/responses", {"model": "tiny", "input": "hi", **fields})


def answered(reply: httpx.Response) -> Response:
    assert reply.status_code == 200, reply.text
    return Response.model_validate(reply.json())


def test_a_whole_response(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon a time", cached_tokens=3)
    whole = answered(ask(harness, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50))
    assert whole.output_text == "Once upon a time"
    assert (whole.status, whole.instructions, whole.metadata) == ("completed", "Be brief.", {"a": "b"})
    usage = whole.usage
    assert usage is not None
    assert usage.input_tokens == len(harness.backend.jobs[-1].sequences[0].prompt)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens == len(harness.say("Once upon a time").tokens)
    assert "<|user|>system: Be brief.<|user|>user: hi<|assistant|>" in harness.prompt()


@pytest.mark.parametrize("masked", [0, 4])
def test_tokens_without_some_experts_are_told(harness: Harness, masked: int) -> None:
    harness.script_of = lambda _: replace(harness.say("Once upon a time"), masked=masked)
    last = named_events(ask(harness, stream=True).text)[-1]
    for response in (ask(harness).json(), last["response"]):
        assert response["usage"].get("masked_tokens", 0) == masked


def test_an_output_that_is_cut_is_incomplete(harness: Harness) -> None:
    cut = answered(ask(harness, max_output_tokens=2))
    assert (cut.status, cut.output_text) == ("incomplete", "Once upon")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    last = named_events(ask(harness, max_output_tokens=2, stream=True).text)[-1]
    assert last["type"] == "response.incomplete"
    harness.script_of = lambda _: harness.say("a dog " * MAX_MODEL_LEN, end=False)
    full = answered(ask(harness, max_output_tokens=32_000))
    assert full.usage is not None
    assert full.usage.total_tokens == MAX_MODEL_LEN


def test_the_same_conversation_as_in_chat(harness: Harness) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a dog"}]},
        {"role": "user", "content": "a story"},
    ]  # fmt: skip
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 5, "stop": ["x"]}
    ask(harness, input=items, max_output_tokens=50, text={"format": {"type": "json_schema", "name": "a",
        "schema": SCHEMA, "strict": True}}, **fields)  # fmt: skip
    chat(
        harness.app,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "reasoning_content": "Hm.",
                "content": "Yes?",
                "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            {"role": "tool", "tool_call_id": "c2", "content": "a dog"},
            {"role": "user", "content": "a story"},
        ],
        max_tokens=50,
        response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        **fields,
    )
    ours, theirs = (job.sequences[0] for job in harness.backend.jobs)
    assert (ours.prompt, ours.sampling) == (theirs.prompt, theirs.sampling)


def test_log_probabilities(harness: Harness) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(harness, **fields).json()
    told = whole["output"][0]["content"][0]["logprobs"]
    assert len(told) == len(harness.say("Once upon a time").tokens)
    assert len(told[0]["top_logprobs"]) == 2
    shown = named_events(ask(harness, stream=True, stop=["time"], **fields).text)
    deltas = [one["logprobs"] for one in shown if one["type"].endswith("text.delta")]
    assert all(deltas)
    assert shown[-1]["response"]["output"][0]["content"][0]["text"] == "Once upon a "


def test_a_long_input_is_cut_where_that_is_wished_for(harness: Harness) -> None:
    long = "a dog " * MAX_MODEL_LEN
    answered(ask(harness, input=long, truncation="auto", max_output_tokens=12))
    assert len(harness.backend.jobs[-1].sequences[0].prompt) == MAX_MODEL_LEN - 12
    assert harness.prompt().endswith("<|assistant|>")
    answered(ask(harness, input=long, truncation="auto"))
    check(ask(harness, input=long), 400, "input", "context_length_exceeded")


CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are Codex, based on GPT-5.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ],
    "tools": [
        {"type": "local_shell"},
        {"type": "image_generation"},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": None,
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "client_metadata": {"x-codex-installation-id": "1"},
}  # fmt: skip


def test_what_codex_sends_is_served(harness: Harness) -> None:
    reply = post(harness.app, "/v1/responses", CODEX, headers={"originator": "codex_cli_rs", "session_id": "1"})
    assert reply.status_code == 200, reply.text
    last = named_events(reply.text)[-1]
    assert last["type"] == "response.completed"
    usage = last["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    warned = reply.headers["x-cloudmatrix-warning"]
    assert "tools[0] (local_shell), tools[1] (image_generation), tools[2] (web_search)" in warned
    assert "Codex" in harness.prompt()
    output = last["response"]["output"]
    again = {**CODEX, "input": [*CODEX["input"], *output, {"role": "user", "content": "more"}]}
    assert post(harness.app, "/v1/responses", again).status_code == 200
    assert harness.prompt().endswith("<|assistant|>Once upon a time<|eos|><|user|>user: more<|assistant|>")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"content": "hi"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["hi"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_smell"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "compaction_trigger"}]}, "input[0]"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, None),
        ({"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ({"n": 2}, "n"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"include": ["x"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}, "ignore_eos": True}, "ignore_eos"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
         "structured_outputs.regex"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"truncation": "middle"}, "truncation"),
        ({"chat_template_kwargs": {"messages": [1]}}, "chat_template_kwargs.messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(harness: Harness, fields: dict[str, Any], param: str | None) -> None:
    reply = ask(harness, **fields)
    if param is None:
        assert reply.status_code == 200
        return
    check(reply, 400, param)
    assert not harness.backend.jobs


def test_a_model_that_calls_nothing_refuses_functions(harness: Harness) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "look", "parameters": {}}]
    check(ask(harness, tools=tools), 400, "tools", "unsupported_parameter")
    assert not harness.backend.jobs
    assert ask(harness, tools=tools, tool_choice="none").status_code == 200


def test_errors_before_and_within_a_stream(harness: Harness) -> None:
    check(post(harness.app, "/v1/responses", {"model": "other", "input": "hi"}), 404, "model", "model_not_found")
    harness.backend.refuse = OverloadedError("full", retry_after_s=1)
    check(ask(harness, stream=True), 429, code="rate_limit_exceeded")
    harness.backend.refuse = None
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    check(ask(harness), 500, code="internal_error")
    assert named_events(ask(harness, stream=True).text)[-1]["type"] == "response.failed"
    busy = OverloadedError("full", retry_after_s=2.5)
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=busy)
    error = named_events(ask(harness, stream=True).text)[-1]["response"]["error"]
    assert error == {"code": "rate_limit_exceeded", "message": "full; try again in 3 s"}


def test_events_fill_silence(served: ServedModel) -> None:
    """Also before the first output; clients count the events of a stream, but not its comments."""
    harness = Harness(served, ApiSettings(event_silence_s=0.01))
    harness.script_of = lambda _: harness.say("a dog", delay_s=0.05)
    shown = named_events(ask(harness, stream=True).text)
    kinds = [one["type"] for one in shown]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds.count("response.in_progress") > 3
    assert [one["sequence_number"] for one in shown] == list(range(len(shown)))
    assert shown[-1]["response"]["output"][0]["content"][0]["text"] == "a dog"
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
    assert named_events(post(harness.app, "/v1/messages", message).text)[0]["type"] == "ping"


def test_an_error_behind_the_first_silence_ends_the_stream(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(event_silence_s=0.01))
    harness.script_of = lambda _: harness.say("a dog", delay_s=0.05, fail_after=0, error=EngineError("lost"))
    assert named_events(ask(harness, stream=True).text)[-1]["type"] == "response.failed"


def test_a_full_context_is_a_failure_where_no_limit_was_set(harness: Harness) -> None:
    """Agents then shorten their conversation; they treat an incomplete response as an error."""
    harness.script_of = lambda spec: Script((40,) * spec.sampling.max_tokens)
    long = "a dog " * 100
    for stream in (False, True):
        reply = ask(harness, input=long, stream=stream)
        response = named_events(reply.text)[-1]["response"] if stream else reply.json()
        assert (response["status"], response["error"]["code"]) == ("failed", "context_length_exceeded")
        assert response["usage"]["total_tokens"] == MAX_MODEL_LEN
        assert response["output"][0]["status"] == "incomplete"
    limited = ask(harness, input=long, max_output_tokens=MAX_MODEL_LEN).json()
    assert (limited["status"], limited["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")

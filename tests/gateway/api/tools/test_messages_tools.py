"""/v1/messages with tools and thinking: blocks in order, matching Anthropic's types and agents' requests."""

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from serving.gateway.api.messages.schema import MessageAnswer
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, named_events, post
from tests.gateway.api.tools.agent_tools import BASH, HEADERS

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls -l"}}\n</tool_call>'
SAID = "<think>\nLook first.\n</think>\n\nLet me look.\n" + CALL
CLAUDE_CODE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "stream": True,
    "metadata": {"user_id": "user_0_account__session_1"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "Use tools.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [BASH, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "temperature": 1,
}
FIRST = [
    {"role": "user", "content": [{"type": "text", "text": "What is here?", "cache_control": {"type": "ephemeral"}}]}
]
AFTER = [
    *FIRST,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Look first.", "signature": ""},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {"command": "ls -l"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a dog"}]},
            {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
            {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
        ],
    },
]


def ask(harness: Harness, said: str, *, end: bool = True, **fields: Any) -> Any:
    """A request with sensible rest."""
    harness.script_of = lambda _: harness.say(said, end=end)
    body = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}], **fields}
    return post(harness.app, "/v1/messages?beta=true", body, headers=HEADERS)


def test_a_whole_answer_has_thinking_text_and_calls(caller: Harness) -> None:
    reply = ask(caller, SAID, tools=[BASH])
    assert reply.status_code == 200, reply.text
    Message.model_validate(reply.json())
    MessageAnswer.model_validate(reply.json())
    thinking, text, call = reply.json()["content"]
    assert thinking == {"type": "thinking", "thinking": "Look first.", "signature": ""}
    assert text == {"type": "text", "text": "Let me look."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "Bash", {"command": "ls -l"})
    assert reply.json()["stop_reason"] == "tool_use"


def test_an_agents_turns(caller: Harness) -> None:
    """The first request of Claude Code, its tool's result, and the count that it requests in between."""
    events = named_events(ask(caller, SAID.removeprefix("<think>\n"), **CLAUDE_CODE, messages=FIRST).text)
    for event in events:
        EVENT.validate_python(event) if event["type"] != "ping" else None
    shown = [event["type"] for event in events if event["type"] != "ping"]
    assert [shown[i] for i in range(len(shown)) if i == 0 or shown[i] != shown[i - 1]] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 3,
        "message_delta",
        "message_stop",
    ]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use"]
    assert starts[2]["input"] == {}
    deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["thinking"] for _, delta in deltas if delta["type"] == "thinking_delta") == "Look first."
    assert "".join(delta["text"] for _, delta in deltas if delta["type"] == "text_delta") == "Let me look."
    pieces = [delta["partial_json"] for index, delta in deltas if delta["type"] == "input_json_delta" and index == 2]
    assert json.loads("".join(pieces)) == {"command": "ls -l"}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    first = caller.prompt()
    assert "billing" not in first
    assert '"name": "Bash"' in first
    assert "web_search" not in first

    reply = ask(caller, "</think>A dog.", **{**CLAUDE_CODE, "stream": False}, messages=AFTER)
    assert [block["text"] for block in reply.json()["content"]] == ["A dog."]
    prompt = caller.prompt()
    assert '<think>Look first.</think>Let me look.<tool_call>Bash: {"command": "ls -l"}</tool_call>' in prompt
    assert prompt.index("tool: a dog") < prompt.index("tool: error") < prompt.index("user: Go on.")

    body = {key: CLAUDE_CODE[key] for key in ("model", "system", "tools", "thinking")}
    counted = post(caller.app, "/v1/messages/count_tokens?beta=true", {**body, "messages": AFTER}, headers=HEADERS)
    assert counted.json() == {"input_tokens": len(caller.backend.jobs[-1].sequences[0].prompt)}
    fewer = {**body, "tools": [], "messages": AFTER}
    assert post(caller.app, "/v1/messages/count_tokens", fewer).json()["input_tokens"] < counted.json()["input_tokens"]


def test_a_call_that_is_cut_off(caller: Harness) -> None:
    cut = CALL[: CALL.index("ls")]
    limit = len(caller.model.tokenizer.encode(cut, add_special_tokens=False))
    reply = ask(caller, cut, end=False, tools=[BASH], max_tokens=limit)
    assert reply.json()["stop_reason"] == "max_tokens"
    assert reply.json()["content"] == [], "an agent would run it with nothing"


@pytest.mark.parametrize(
    ("fields", "text", "lets"),
    [
        ({}, "No.", True),
        ({"tool_choice": {"type": "any"}}, "No.", False),
        ({"tool_choice": {"type": "any"}}, CALL + "\n" + CALL, True),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, CALL + "\n" + CALL, False),
        ({"tool_choice": {"type": "tool", "name": "Bash"}}, CALL, True),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"const": 5}}}}, "5", True),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"const": 5}}}}, "No.", False),
    ],
)
def test_what_binds_the_output(caller: Harness, fields: dict[str, Any], text: str, lets: bool) -> None:
    assert ask(caller, "Yes.", tools=[BASH], **fields).status_code == 200
    grammar = caller.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(caller.model, grammar, text) == lets


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
        ({"tools": [BASH, {**BASH, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [BASH, BASH]}, "tools[1].name"),
        ({"tools": [{**BASH, "input_schema": 5}]}, "tools[0].input_schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/no"}}}}, "output_config.format"),
    ],
)
def test_errors_name_the_field_as_the_client_wrote_it(caller: Harness, fields: dict[str, Any], named: str) -> None:
    reply = ask(caller, "Yes.", **{"tools": [BASH], **fields})
    assert reply.status_code == 400
    assert f"'{named}" in reply.json()["error"]["message"]
    assert not caller.backend.jobs

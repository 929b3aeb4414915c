"""Blocks of calls on /v1/messages: complete or absent, with ids like Anthropic's; fields of other routes."""

import json
import re
from typing import Any

import pytest

from tests.gateway.api.support import Harness, named_events, post

TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}} for name in "xy"]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def ask(harness: Harness, said: str, *, end: bool = True, **fields: Any) -> Any:
    harness.script_of = lambda _: harness.say(said, end=end)
    body = {"max_tokens": 200, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **fields}
    reply = post(harness.app, "/v1/messages", body)
    assert reply.status_code == 200, reply.text
    return reply


WHOLE = call("x", '{"a": "b"}')


@pytest.mark.parametrize("kept", range(len('{"a": "b"')))
def test_a_call_that_is_cut_off_has_no_block(caller: Harness, kept: int) -> None:
    """Earlier calls and the text stay."""
    cut = WHOLE[: WHOLE.index("arguments") + len('arguments": ') + kept]
    said = "Look.\n" + call("y", "{}") + "\n" + cut
    limit = len(caller.model.tokenizer.encode(said, add_special_tokens=False))
    answer = ask(caller, said, end=False, max_tokens=limit).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]
    assert (answer["content"][1]["name"], answer["content"][1]["input"]) == ("y", {})


def test_a_call_whose_arguments_are_whole_stays(caller: Harness) -> None:
    said = WHOLE.removesuffix("}\n</tool_call>")
    limit = len(caller.model.tokenizer.encode(said, add_special_tokens=False))
    (block,) = ask(caller, said, end=False, max_tokens=limit).json()["content"]
    assert block["input"] == {"a": "b"}


def test_arguments_that_are_no_json_have_no_block(caller: Harness) -> None:
    answer = ask(caller, call("x", '{"a" 1}')).json()
    assert (answer["content"], answer["stop_reason"]) == ([], "end_turn")


@pytest.mark.parametrize("stream", [False, True])
def test_ids_look_as_anthropics(caller: Harness, stream: bool) -> None:
    reply = ask(caller, WHOLE + "\n" + call("y", "{}"), stream=stream)
    if stream:
        starts = [event for event in named_events(reply.text) if event["type"] == "content_block_start"]
        ids = [event["content_block"]["id"] for event in starts]
    else:
        ids = [block["id"] for block in reply.json()["content"]]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"toolu_[0-9a-f]{24}", one) for one in ids)


def test_fields_that_other_routes_have(caller: Harness) -> None:
    fields: dict[str, Any] = {"seed": 7, "cache_salt": "mine", "priority": -3}
    ask(caller, "Yes.", **fields)
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [], **fields}
    post(caller.app, "/v1/chat/completions", chat)
    ask(caller, "Yes.")
    ours, theirs, plain = (job.sequences[0] for job in caller.backend.jobs)
    assert ours.sampling.seed == theirs.sampling.seed == 7
    assert ours.salt == theirs.salt != plain.salt
    assert ours.priority == theirs.priority == -3
    for wrong in ({"seed": "x"}, {"cache_salt": ""}, {"priority": 2**31}):
        reply = post(caller.app, "/v1/messages", {"max_tokens": 5, "messages": chat["messages"], **wrong})
        assert reply.status_code == 400
        assert json.dumps(next(iter(wrong)))[1:-1] in reply.json()["error"]["message"]

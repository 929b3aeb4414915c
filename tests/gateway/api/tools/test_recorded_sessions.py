"""Whole recorded sessions of Codex and Claude Code: none of their requests is refused, and every prefix stays whole.

`make try-agents ARGS="--record tests/cases/agent_sessions"` records them again.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from tests.agents.recording import Request, read
from tests.agents.scripted_server import bundled_model, text_tokens
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, named_events, post

SESSIONS = ("codex", "codex-code-mode", "claude")
IGNORED = {
    "codex": {"client_metadata", "text.verbosity", "web_search", "input_image"},
    "codex-code-mode": {
        "client_metadata",
        "text.verbosity",
        "reasoning.context",
        "configuration_update",
        "input_image",
    },
    "claude": {"image"},
}
"""What warnings name: none of it has an effect here, or a placeholder tells the model what it cannot see."""
EVENTS = {
    "codex": {
        "response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta",
        "response.reasoning_text.delta", "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta", "response.completed",
    },
    "codex-code-mode": {"response.output_item.done", "response.custom_tool_call_input.delta", "response.completed"},
    "claude": {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
               "message_stop"},
}  # fmt: skip
"""Events that the agent acts on."""
CALLS = {
    "codex": {"exec_command", "write_stdin", "apply_patch", "view_image", "tool_search", "spawn_agent", "wait_agent"},
    "codex-code-mode": {"exec", "wait", "spawn_agent", "wait_agent", "list_agents", "sleep"},
    "claude": {"Bash", "Read", "Write", "Edit", "ToolSearch", "WebFetch", "Agent", "ListAgents", "NoSuchTool"},
}

Call = tuple[str, dict[str, Any]]
"""Tool and arguments; the input of a custom tool as `input`."""
SCALE = 0.25
"""Of the generated texts' lengths: at full length the same takes four times as long."""


@pytest.fixture(scope="module")
def bundled() -> ServedModel:
    return bundled_model()


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session(name: str, bundled: ServedModel) -> None:
    harness, requests = Harness(bundled), read(name, SCALE)
    prompts: dict[str, tuple[int, ...]] = {}
    seen: set[str] = set()
    answered: list[Call] = []
    for number, one in enumerate(requests):
        shown, warning = replayed(harness, one)
        assert ignored(warning) <= IGNORED[name], f"request {number}: {warning}"
        seen |= {event["type"] for event in shown}
        prompt = tuple(harness.backend.jobs[-1].sequences[0].prompt)
        before = prompts.get(one.thread, ())
        assert one.restarts or prompt[: len(before)] == before, f"request {number} changes its prefix"
        prompts[one.thread] = prompt
        answered += list(output(shown))
    assert seen >= EVENTS[name]
    assert {call[0] for call in answered} >= CALLS[name]
    sent = list(echoed(requests))
    for tool, given in answered:
        assert any(tool == other and given.items() <= echo.items() for other, echo in sent), (tool, given)
    assert sum(one.thread == "main" for one in requests) >= 12
    assert [one.restarts for one in requests].count("") >= len(requests) - 5, "most prompts extend the previous one"


def replayed(harness: Harness, one: Request) -> tuple[list[Any], str]:
    """Events of the answer to a request, and its warning."""
    ids = text_tokens(one.said)
    harness.script_of = lambda _: Script((*ids, *harness.model.eos_ids), per_update=16)
    reply = post(harness.app, one.path, one.body, headers=one.headers)
    assert reply.status_code == 200, reply.text
    return named_events(reply.text), reply.headers.get("x-cloudmatrix-warning", "")


def ignored(warning: str) -> set[str]:
    """Names in a warning; of a part or a tool its type."""
    names = warning.removeprefix("ignored fields: ").split(", ") if warning else []
    return {one.rpartition("(")[2].rstrip(")") for one in names}


def output(shown: Sequence[Any]) -> Iterator[Call]:
    """Calls in an answer."""
    arguments: dict[int, str] = {}
    for event in shown:
        if event["type"] == "response.output_item.done":
            yield from calls([event["item"]])
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            arguments[event["index"]] = arguments.get(event["index"], "") + event["delta"]["partial_json"]
    for event in shown:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            block = event["content_block"]
            yield from calls([{**block, "input": json.loads(arguments.get(event["index"], "{}"))}])


def echoed(requests: Sequence[Request]) -> Iterator[Call]:
    """Calls that the agent repeats in later requests, some with defaults that it has added."""
    for one in requests:
        yield from calls(one.body.get("input", ()))
        for message in one.body.get("messages", ()):
            if isinstance(message["content"], list):
                yield from calls(message["content"])


def calls(items: Sequence[Any]) -> Iterator[Call]:
    """The calls among items or blocks."""
    for item in items:
        if item["type"] in ("tool_use", "function_call", "custom_tool_call", "tool_search_call"):
            given = item.get("arguments", item.get("input"))
            if isinstance(given, str):
                given = {"input": given} if item["type"] == "custom_tool_call" else json.loads(given)
            yield item.get("name", "tool_search"), given

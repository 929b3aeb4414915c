"""Anthropic's typed tools: those that the client runs are offered with their schema, the others cause a warning."""

from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, post

PATH = "/v1/messages"
HI: dict[str, Any] = {"max_tokens": 300, "messages": [{"role": "user", "content": "hi"}]}
COMPUTER = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
EDITOR, OLD_EDITOR = "str_replace_based_edit_tool", "str_replace_editor"


@pytest.fixture
def caller(hermes: ServedModel) -> Harness:
    """A caller with enough space for long descriptions in a small vocabulary."""
    return Harness(replace(hermes, max_model_len=4096))


def ask(harness: Harness, *tools: dict[str, Any], **fields: Any) -> Any:
    return post(harness.app, PATH, {**HI, "tools": list(tools), **fields})


def prompt_of(harness: Harness) -> str:
    return harness.model.tokenizer.decode(harness.backend.jobs[-1].sequences[0].prompt, skip_special_tokens=False)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}'


@pytest.mark.parametrize(
    ("tool", "good", "bad"),
    [
        ({"type": "bash_20250124", "name": "bash"}, '{"command": "ls"}', '{"cmd"'),
        ({"type": "bash_20241022", "name": "bash"}, '{"restart": true}', '{"restart": "'),
        ({"type": "text_editor_20250728", "name": EDITOR, "max_characters": 100},
         '{"command": "view", "path": "/a", "view_range": [1, -1]}', '{"command": "undo_edit'),
        ({"type": "text_editor_20250429", "name": EDITOR}, '{"command": "insert", "path": "/a"', '{"path'),
        ({"type": "text_editor_20250124", "name": OLD_EDITOR}, '{"command": "undo_edit", "path": "/a"}',
         '{"command": "delete'),
        (COMPUTER, '{"action": "left_click", "coordinate": [1, 2]}', '{"action": "zoom'),
        ({**COMPUTER, "type": "computer_20251124", "enable_zoom": True}, '{"action": "zoom", "region": [0, 0, 9, 9]}',
         '{"action": "fly'),
        ({**COMPUTER, "type": "computer_20241022"}, '{"action": "key", "text": "Return"}', '{"action": "scroll'),
        ({"type": "memory_20250818", "name": "memory"}, '{"command": "rename", "old_path": "/a", "new_path": "/b"}',
         '{"command": "undo_edit'),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)  # fmt: skip
@pytest.mark.parametrize("forced", [False, True])
def test_what_the_client_runs_is_offered(
    caller: Harness, tool: dict[str, Any], good: str, bad: str, forced: bool
) -> None:
    choice = {"tool_choice": {"type": "tool", "name": tool["name"]}} if forced else {}
    caller.script_of = lambda _: caller.say(
        call(tool["name"], good if good.endswith("}") else "{}") + "}\n</tool_call>"
    )
    reply = ask(caller, tool, **choice)
    assert reply.status_code == 200, reply.text
    assert "x-cloudmatrix-warning" not in reply.headers
    assert (reply.json()["content"][0]["type"], reply.json()["content"][0]["name"]) == ("tool_use", tool["name"])
    assert f'"name": "{tool["name"]}"' in prompt_of(caller)
    grammar = caller.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(caller.model, grammar, call(tool["name"], good))
    assert not may_begin(caller.model, grammar, call(tool["name"], bad))


def test_the_screen_is_described(caller: Harness) -> None:
    ask(caller, COMPUTER)
    assert "1024 x 768 pixels" in prompt_of(caller)


ABSENT = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    {"type": "bash_code_execution_20250825", "name": "bash_code_execution"},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
    {"type": "computer_toolset_20260801"},
    {"type": "flying_20990101", "name": "fly"},
]


@pytest.mark.parametrize("tool", ABSENT, ids=lambda tool: tool["type"])
def test_what_only_the_provider_runs_is_warned_of(caller: Harness, tool: dict[str, Any]) -> None:
    bash = {"type": "bash_20250124", "name": "bash"}
    reply = ask(caller, bash, tool)
    assert reply.status_code == 200
    assert reply.headers["x-cloudmatrix-warning"] == f"ignored fields: tools[1] ({tool['type']})"
    assert ask(caller, tool).status_code == 200
    counted = post(caller.app, f"{PATH}/count_tokens", {"messages": HI["messages"], "tools": [tool]})
    assert counted.headers["x-cloudmatrix-warning"] == f"ignored fields: tools[0] ({tool['type']})"
    refused = ask(caller, tool, tool_choice={"type": "any"})
    assert refused.status_code == 400
    assert f"tools[0] ({tool['type']})" in refused.json()["error"]["message"]
    if "name" in tool:
        named = ask(caller, bash, tool, tool_choice={"type": "tool", "name": tool["name"]})
        assert named.status_code == 400
        assert f"demands tools[1] ({tool['type']})" in named.json()["error"]["message"]

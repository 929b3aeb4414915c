"""`context_management` on /v1/messages: results of old calls are cleared, and the answer says how many."""

from typing import Any

import pytest

from serving.gateway.api.messages.context_edits import CLEARED
from tests.gateway.api.support import Harness, named_events, post

TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("read", "keep")]


def conversation(*names: str) -> list[dict[str, Any]]:
    """Calls of these tools, each with its result."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for number, name in enumerate(names):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"path": f"in{number}"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number} " * 20}
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return turns


def ask(harness: Harness, turns: list[dict[str, Any]], *edits: Any, path: str = "", **fields: Any) -> Any:
    body = {"messages": turns, "tools": TOOLS, "context_management": {"edits": list(edits)}, **fields}
    limit = {} if path else {"max_tokens": 20}
    return post(harness.app, f"/v1/messages{path}", {**body, **limit})


def edit(**fields: Any) -> dict[str, Any]:
    whole = {"trigger": {"type": "tool_uses", "value": 4}, **fields}
    return {"type": "clear_tool_uses_20250919", **{key: value for key, value in whole.items() if value is not None}}


def shown(harness: Harness) -> list[int]:
    """Numbers of the results in the prompt."""
    return [number for number in range(9) if f"result {number} " in harness.prompt()]


@pytest.mark.parametrize(
    ("fields", "left", "inputs"),
    [
        ({}, [2, 3, 4], 5),
        ({"keep": {"type": "tool_uses", "value": 1}}, [4], 5),
        ({"keep": {"type": "tool_uses", "value": 0}}, [], 5),
        ({"exclude_tools": ["keep"]}, [1, 2, 3, 4], 5),
        ({"clear_tool_inputs": True}, [2, 3, 4], 3),
        ({"trigger": {"type": "tool_uses", "value": 5}}, [0, 1, 2, 3, 4], 5),
        ({"trigger": {"type": "input_tokens", "value": 100}}, [2, 3, 4], 5),
        ({"trigger": None}, [0, 1, 2, 3, 4], 5),
        ({"clear_at_least": {"type": "input_tokens", "value": 5000}}, [0, 1, 2, 3, 4], 5),
    ],
)
def test_old_results_are_cleared(roomy: Harness, fields: dict[str, Any], left: list[int], inputs: int) -> None:
    """With the defaults the last three are kept, and nothing is done below 100,000 tokens."""
    turns = conversation("read", "keep", "read", "read", "read")
    reply = ask(roomy, turns, edit(**fields))
    assert reply.status_code == 200, reply.text
    assert shown(roomy) == left
    assert sum(f"in{number}" in roomy.prompt() for number in range(5)) == inputs
    assert roomy.prompt().count(CLEARED) == 5 - len(left)
    applied = reply.json()["context_management"]["applied_edits"]
    assert [one["cleared_tool_uses"] for one in applied] == ([5 - len(left)] if len(left) < 5 else [])
    last = named_events(ask(roomy, turns, edit(**fields), stream=True).text)[-2]
    assert last["context_management"]["applied_edits"] == applied
    counted = ask(roomy, turns, edit(**fields), path="/count_tokens").json()
    saved = sum(one["cleared_input_tokens"] for one in applied)
    usage = reply.json()["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted["context_management"]["original_input_tokens"] == counted["input_tokens"] + saved
    assert bool(saved) == bool(applied)


def test_a_prompt_that_fits_only_after_the_edit_is_answered(roomy: Harness) -> None:
    turns = conversation(*["read"] * 80)
    assert post(roomy.app, "/v1/messages", {"messages": turns, "tools": TOOLS, "max_tokens": 5}).status_code == 400
    assert ask(roomy, turns, edit()).status_code == 200


def test_other_requests_are_not_told_of_edits(roomy: Harness) -> None:
    reply = post(roomy.app, "/v1/messages", {"messages": conversation("read"), "tools": TOOLS, "max_tokens": 5})
    assert "context_management" not in reply.json()


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"keep": {"type": "tool_uses", "value": -1}}, "keep.value"),
        ({"keep": {"type": "input_tokens", "value": 3}}, "keep.type"),
        ({"trigger": {"type": "turns", "value": 3}}, "trigger"),
        ({"clear_at_least": {"type": "input_tokens", "value": "many"}}, "clear_at_least.value"),
        ({"exclude_tools": [1]}, "exclude_tools[0]"),
    ],
)
def test_wrong_edits_are_named(roomy: Harness, wrong: dict[str, Any], param: str) -> None:
    reply = ask(roomy, conversation("read"), edit(**wrong))
    assert reply.status_code == 400
    assert "context_management.edits[0]" in reply.json()["error"]["message"]
    assert param.partition(".")[0].partition("[")[0] in reply.json()["error"]["message"]

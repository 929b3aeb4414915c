"""Sessions of coding agents, request by request as they were recorded: none is refused.

Each turn's addition stays unchanged in the next prompt, so that the cache serves it.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.gateway.api.published import check as check_schema
from tests.gateway.api.published import described
from tests.gateway.api.support import Harness, named_events, post
from tests.gateway.api.tools.agent_tools import BASH, CUSTOM, HEADERS, PATCH, called

SHELL = {"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False,
         "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"],
                        "additionalProperties": False}}  # fmt: skip
TOOL_SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools.",
               "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}  # fmt: skip
NAMESPACE = {"type": "namespace", "name": "mcp__git", "description": "Git.", "tools": [
    {"type": "function", "name": "log", "description": "Commits.", "strict": False, "defer_loading": True,
     "parameters": {"type": "object", "properties": {}}}]}  # fmt: skip
AGENT = {"type": "namespace", "name": "multi_agent", "description": "Agents.", "tools": [{**SHELL, "name": "spawn"}]}


def turn(role: str, text: str, number: int) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": [{"type": "input_text", "text": text}]}


CODEX: dict[str, Any] = {
    "model": "tiny",
    "tools": [SHELL, CUSTOM, TOOL_SEARCH, AGENT, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}
CODEX_HEADERS = {"originator": "codex_exec", "session-id": "0199a213", "x-codex-window-id": "0199a213:0"}
CODE_MODE = {
    **{key: value for key, value in CODEX.items() if key != "tools"},
    "parallel_tool_calls": False,
}
ADDED = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
    {"type": "namespace", "name": "functions", "description": "Code mode.", "tools": [
        {"type": "custom", "name": "exec", "description": "Runs JavaScript.", "format": {"type": "text"}},
        {**SHELL, "name": "wait"}]}]}  # fmt: skip


def codex(harness: Harness, body: dict[str, Any], items: list[Any], said: str) -> list[dict[str, Any]]:
    """One request of a session, whose output is appended to its items. Returns: the output."""
    harness.script_of = lambda _: harness.say(said)
    reply = post(harness.app, "/v1/responses", {**body, "input": items}, headers=CODEX_HEADERS)
    assert reply.status_code == 200, reply.text
    shown = named_events(reply.text)
    assert shown[-1]["type"] == "response.completed"
    for one in shown:
        check_schema("ResponseStreamEvent", one)
        assert described(one)
    output = [one["item"] for one in shown if one["type"] == "response.output_item.done"]
    items += [{key: value for key, value in one.items() if key != "status"} for one in output]
    return output


def grows(prompts: Sequence[str]) -> bool:
    """Whether each prompt starts with the previous one."""
    return all(after.startswith(before) for before, after in pairwise(prompts))


def test_codex_with_its_tools(roomy: Harness) -> None:
    """Function, custom tool, namespace, found tools, an image, another agent, and items of other providers."""
    items: list[Any] = [turn("developer", "You are Codex.", 1), turn("user", "Fix it.", 2)]
    prompts = []
    said = '<think>\nHm.\n</think>\n<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>'
    *_, call = codex(roomy, CODEX, items, said)
    prompts.append(roomy.prompt())
    image = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    items.append({"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"], "output": image})
    (patch,) = codex(roomy, CODEX, items, called(PATCH))
    prompts.append(roomy.prompt())
    assert (patch["type"], patch["input"]) == ("custom_tool_call", PATCH)
    items.append({"type": "custom_tool_call_output", "id": "ctco_1", "call_id": patch["call_id"], "output": "Done."})
    said = '<tool_call>\n{"name": "tool_search", "arguments": {"query": "git"}}\n</tool_call>'
    (search,) = codex(roomy, CODEX, items, said)
    prompts.append(roomy.prompt())
    assert (search["type"], search["execution"], search["arguments"]) == (
        "tool_search_call",
        "client",
        {"query": "git"},
    )
    items.append({"type": "tool_search_output", "id": "tso_1", "call_id": search["call_id"], "execution": "client",
                  "status": "completed", "tools": [NAMESPACE]})  # fmt: skip
    (log,) = codex(roomy, CODEX, items, '<tool_call>\n{"name": "mcp__git__log", "arguments": {}}\n</tool_call>')
    prompts.append(roomy.prompt())
    assert (log["namespace"], log["name"]) == ("mcp__git", "log")
    items += [{"type": "function_call_output", "call_id": log["call_id"], "output": "a commit"},
              {"type": "agent_message", "id": "am_1", "author": "/root/a", "recipient": "/root",
               "content": [{"type": "input_text", "text": "Done."}, {"type": "encrypted_content",
                                                                     "encrypted_content": "gAAA"}]},
              {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
              {"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "gAAA"},
              {"type": "configuration_update", "id": "cu_1"}]  # fmt: skip
    codex(roomy, CODEX, items, "All done.")
    prompts.append(roomy.prompt())
    assert grows(prompts)
    compact = {**CODEX, "tools": [], "parallel_tool_calls": False}
    (summary,) = codex(roomy, compact, [*items, {"type": "compaction_trigger"}], "<think>\nHm.\n</think>\nThe log.")
    assert summary["type"] == "compaction"
    shorter = [turn("developer", "You are Codex.", 1), summary, turn("user", "Go on.", 9)]
    codex(roomy, CODEX, shorter, "Yes.")
    assert "<|user|>user: Summary of the conversation so far:\nThe log.<|user|>user: Go on." in roomy.prompt()


def test_codex_in_code_mode(roomy: Harness) -> None:
    """Its tools are sent as an item, without `tools`."""
    items: list[Any] = [ADDED, turn("developer", "You are Codex.", 1), turn("user", "Fix it.", 2)]
    prompts = []
    for number in range(3):
        text = f'const a = `{number}\\n"`;\nawait tools.exec(a)'
        said = f'<tool_call>\n{{"name": "functions__exec", "arguments": {json.dumps({"input": text})}}}\n</tool_call>'
        (call,) = codex(roomy, CODE_MODE, items, said)
        prompts.append(roomy.prompt())
        assert (call["namespace"], call["name"], call["input"]) == ("functions", "exec", text)
        items.append({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": [
            {"type": "input_text", "text": "ok"}]})  # fmt: skip
    assert grows(prompts)


CLAUDE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "stream": True,
    "metadata": {"user_id": '{"session_id": "1"}'},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1;"},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
    ],
    "thinking": {"type": "adaptive", "display": "updates"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
SEARCH = {"name": "ToolSearch", "description": "Finds tools.", "input_schema": {"type": "object", "properties": {}}}
FETCH = {"name": "WebFetch", "description": "Reads a page.", "input_schema": {"type": "object", "properties": {}},
         "defer_loading": True}  # fmt: skip


def test_claude_with_tool_search(roomy: Harness) -> None:
    """The found tool is inserted in the middle of `tools`; the prompt before its reference does not change."""
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Look."}]},
                           {"role": "system", "content": [{"type": "text", "text": "Today is Sunday."}]}]  # fmt: skip
    results = [
        [{"type": "tool_reference", "tool_name": "WebFetch"}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
         {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
         {"type": "search_result", "source": "a", "title": "A", "content": [{"type": "text", "text": "Sun."}]}],
        "plain",
    ]  # fmt: skip
    tools = [SEARCH, BASH, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    prompts = []
    for number, (name, result) in enumerate(zip(("ToolSearch", "WebFetch", "Bash"), results, strict=True)):
        arguments = '{"command": "ls"}' if name == "Bash" else "{}"
        said = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        script = roomy.say(said)
        roomy.script_of = lambda _, script=script: script  # type: ignore[misc]
        offered = tools if number == 0 else [SEARCH, FETCH, *tools[1:]]
        asked = {**CLAUDE, "tools": offered, "messages": messages}
        reply = post(roomy.app, "/v1/messages?beta=true", asked, headers=HEADERS)
        assert reply.status_code == 200, reply.text
        prompts.append(roomy.prompt())
        blocks = [event["content_block"] for event in named_events(reply.text) if "content_block" in event]
        (used,) = [block for block in blocks if block["type"] == "tool_use"]
        assert used["name"] == name
        messages += [{"role": "assistant", "content": [{**used, "input": json.loads(arguments)}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"], "content": result,
                                                   "is_error": number == 2}]}]  # fmt: skip
    assert grows(prompts)
    counted = {key: CLAUDE[key] for key in ("model", "system", "thinking")}
    reply = post(roomy.app, "/v1/messages/count_tokens", {**counted, "tools": offered, "messages": messages})
    assert reply.status_code == 200, reply.text

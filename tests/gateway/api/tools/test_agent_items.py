"""Items of agents' conversations on /v1/responses: turns, the tools they bring, namespaces, skipped items."""

import json
from typing import Any

import pytest

from serving.gateway.api.responses.tools import FlatNames, chat_tools
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, check, named_events, post

HI = {"role": "user", "content": "hi"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
EXEC = {"type": "custom", "name": "exec"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}


def ask(harness: Harness, *items: Any, **fields: Any) -> Any:
    return post(harness.app, "/v1/responses", {"input": [HI, *items], "store": False, **fields})


@pytest.mark.parametrize(
    ("items", "prompt"),
    [
        ([{"type": "custom_tool_call", "call_id": "a", "name": "exec", "input": "1\n"},
          {"type": "custom_tool_call_output", "call_id": "a", "output": "2"}],
         '<tool_call>exec: {"input": "1\\n"}</tool_call><|eos|><|user|>tool: 2'),
        ([{"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "q"}},
          {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": [LOOK]}],
         '<tool_call>tool_search: {"query": "q"}</tool_call><|eos|><|user|>tool: {"type": "function", "function": '
         '{"name": "look"'),
        ([{"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"]}},
          {"type": "local_shell_call_output", "id": "a", "output": "README"}],
         '"command": ["ls"]}</tool_call><|eos|><|user|>tool: README'),
        ([{"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
          {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "README", "stderr": ""}]}],
         '<tool_call>shell: {"commands": ["ls"]}</tool_call><|eos|><|user|>tool: [{"stdout": "README"'),
        ([{"type": "mcp_call", "id": "m", "server_label": "git", "name": "log", "arguments": "{}", "output": "one"}],
         "<tool_call>git__log: {}</tool_call><|eos|><|user|>tool: one"),
        ([{"type": "agent_message", "author": "/root/a", "recipient": "/root",
           "content": [{"type": "input_text", "text": "Done."}]}],
         "<|user|>user: [message from /root/a]\nDone."),
        ([{"type": "agent_message", "author": "/root", "recipient": "/root/a",
           "content": [{"type": "input_text", "text": "Task:"}, {"type": "encrypted_content",
                                                                 "encrypted_content": "Count the files."}]}],
         "<|user|>user: [message from /root]\nTask:\nCount the files."),  # as our model wrote it: nothing encrypts it
    ],
)  # fmt: skip
def test_calls_and_outputs_are_turns(roomy: Harness, items: list[Any], prompt: str) -> None:
    reply = ask(roomy, *items)
    assert reply.status_code == 200, reply.text
    assert "x-cloudmatrix-warning" not in reply.headers
    assert prompt in roomy.prompt()


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call", "mcp_list_tools",
     "compaction", "compaction_summary", "context_compaction", "configuration_update", "program"],  # sealed elsewhere
)  # fmt: skip
def test_what_says_nothing_is_skipped_and_named(roomy: Harness, kind: str) -> None:
    assert ask(roomy).status_code == 200
    plain = roomy.prompt()
    reply = ask(roomy, {"type": kind, "id": "x", "encrypted_content": "gAAA", "result": "iVBO"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-cloudmatrix-warning"] == f"ignored fields: input[1] ({kind})"
    assert roomy.prompt() == plain


def test_images_and_files_leave_words(roomy: Harness) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "view", "arguments": "{}"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "AA"}
    reply = ask(roomy, {"role": "user", "content": [{"type": "input_text", "text": "See"}, file]}, call,
                {"type": "function_call_output", "call_id": "a", "output": [IMAGE]})  # fmt: skip
    assert reply.headers["x-cloudmatrix-warning"] == (
        "ignored fields: input[1].content[1] (input_file), input[3].output[0] (input_image)"
    )
    assert "See\n[file 'a.pdf': not read by this model]" in roomy.prompt()
    assert "tool: [image: not read by this model]" in roomy.prompt()


def test_tools_of_items_join_the_others(roomy: Harness) -> None:
    """Those of `additional_tools` in front, those that a search has found at the place of the search."""
    added = {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "functions",
             "description": "All.", "tools": [EXEC]}, {"type": "web_search"}]}  # fmt: skip
    found = [{"type": "tool_search_call", "call_id": "a", "arguments": {}},
             {"type": "tool_search_output", "call_id": "a", "tools": [LOOK]}]  # fmt: skip
    reply = post(roomy.app, "/v1/responses", {"input": [added, HI], "store": False})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-cloudmatrix-warning"] == "ignored fields: input[0].tools[1] (web_search)"
    before = roomy.prompt()
    assert before.index("functions__exec") < before.index("user: hi")
    again = post(roomy.app, "/v1/responses", {"input": [added, HI, *found, added], "store": False})
    assert again.status_code == 200, again.text
    assert roomy.prompt().startswith(before.removesuffix("<|assistant|>")), "the head stays"
    assert roomy.prompt().count('"name": "look"') == 1
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    for name, lets in (("look", True), ("functions__exec", True), ("other", False)):
        assert may_begin(roomy.model, grammar, f'<tool_call>\n{{"name": "{name}"') == lets


def test_a_namespace_comes_back(roomy: Harness) -> None:
    """It is flattened for the model; its calls have the namespace and the bare name, in later turns as well."""
    tools = [LOOK, {"type": "namespace", "name": "mcp__git", "tools": [LOOK, EXEC]}]
    roomy.script_of = lambda _: roomy.say('<tool_call>\n{"name": "mcp__git__look", "arguments": {}}\n</tool_call>')
    shown = named_events(ask(roomy, tools=tools, stream=True).text)
    call = shown[-1]["response"]["output"][0]
    assert (call["namespace"], call["name"]) == ("mcp__git", "look")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a"}
    assert ask(roomy, call, output, tools=tools).status_code == 200
    assert "<tool_call>mcp__git__look: {}" in roomy.prompt()
    chosen = {"type": "function", "namespace": "mcp__git", "name": "look"}
    assert ask(roomy, tools=tools, tool_choice=chosen).status_code == 200
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert not may_begin(roomy.model, grammar, '<tool_call>\n{"name": "look"')
    check(ask(roomy, tools=tools, tool_choice={"type": "function", "name": "see"}), 400, "tool_choice")


def test_flat_names_are_unique_and_short() -> None:
    names = FlatNames()
    asked = [("", "a__b"), ("a", "b"), ("a__", "b"), ("n s", "x"), ("n" * 200, "x"), ("n" * 200 + "y", "x")]
    flat = [names.add(own) for own in asked]
    assert len(set(flat)) == len(flat)
    assert max(map(len, flat)) <= 128
    assert [names.own[one] for one in flat] == asked
    many = [{"type": "namespace", "name": f"n{i % 9}", "tools": [{**LOOK, "name": f"t{i}"}]} for i in range(500)]
    assert len(chat_tools(many).names.own) == 500


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "additional_tools", "tools": "x"}, "input[1].tools"),
        ({"type": "additional_tools", "tools": [5]}, "input[1].tools[0]"),
        ({"type": "additional_tools", "tools": [{"type": "namespace", "name": "a"}]}, "input[1].tools[0]"),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "input[1].tools[0].name"),
        ({"type": "additional_tools", "tools": [{"type": "custom", "name": []}]}, "input[1].tools[0].name"),
        ({"type": "tool_search_output", "call_id": "a"}, "input[1].tools"),
        ({"type": "custom_tool_call", "call_id": "a", "name": "x", "input": {}}, "input[1].input"),
        ({"type": "custom_tool_call_output", "call_id": "a"}, "input[1].output"),
        ({"type": "function_call", "call_id": "a", "name": "x", "namespace": 5, "arguments": ""}, "input[1].namespace"),
        ({"type": "agent_message", "content": "x"}, "input[1].author"),
    ],
)
def test_a_broken_item_is_refused_by_name(roomy: Harness, item: Any, param: str) -> None:
    check(ask(roomy, item), 400, param)


@pytest.mark.parametrize(
    ("said", "summary"),
    [("All done.", "All done."), ("", ""), ("All done. And more " * 9, "All done. And")],
)
def test_a_trigger_makes_one_summary(roomy: Harness, said: str, summary: str) -> None:
    """Also of nothing, and at the limit; a later response continues from it, with the instructions before it."""
    roomy.script_of = lambda _: roomy.say(said)
    items, limit = ({"role": "developer", "content": "Be brief."}, {"type": "compaction_trigger"}), {}
    if len(said) > 20:
        limit = {"max_output_tokens": len(roomy.say(summary).tokens) - 1}
    whole = ask(roomy, *items, store=True, **limit).json()
    (item,), asked = whole["output"], roomy.prompt()
    assert whole["status"] == "completed"
    assert (item["type"], item["encrypted_content"]) == ("compaction", "cloudmatrix:" + summary)
    assert "developer: Be brief.<|user|>user: Summarise the conversation so far" in asked.replace("system", "developer")
    shown = named_events(ask(roomy, *items, stream=True, **limit).text)
    assert [one["type"][-5:] for one in shown if "item" in one["type"]] == ["added", ".done"]
    assert shown[-1]["response"]["output"][0]["encrypted_content"] == item["encrypted_content"]
    post(roomy.app, "/v1/responses", {"input": "Go on.", "previous_response_id": whole["id"]})
    assert (
        f"Be brief.<|user|>user: Summary of the conversation so far:\n{summary}<|user|>user: Go on." in roomy.prompt()
    )
    assert "user: hi" not in roomy.prompt()


@pytest.mark.parametrize("items", [[{"type": "compaction_trigger"}], [{"type": "compaction_trigger"}, HI]])
def test_a_trigger_in_the_wrong_place_is_refused(roomy: Harness, items: list[Any]) -> None:
    check(post(roomy.app, "/v1/responses", {"input": items}), 400, "input[0]", "invalid_value")


def test_many_items_are_refused_for_their_length_alone(roomy: Harness) -> None:
    call = {"type": "custom_tool_call", "call_id": "a", "name": "exec", "input": "1"}
    tools = chat_tools([EXEC], [(f"input[{index}]", call) for index in range(1000)])
    assert len(tools.tools) == 1
    reply = ask(roomy, *[call] * 1000)
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert json.dumps(call) not in reply.text

"""Responses of a model that calls tools and reasons, and requests with functions exactly as Codex sends them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.gateway.api.published import described
from tests.gateway.api.support import Harness, chat, check, named_events, post
from tests.gateway.api.tools.conftest import HERMES, MARKERS, tool_model

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PARAMETERS = {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
              "required": ["command"], "additionalProperties": False}  # fmt: skip
SHELL = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
         "parameters": PARAMETERS}  # fmt: skip
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are Codex.",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [
        SHELL,
        {"type": "custom", "name": "apply_patch", "description": "Edit files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "function", "name": "update_plan", "description": "", "strict": False,
         "parameters": {"type": "object", "properties": {}}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
}  # fmt: skip
SAID = "<think>\nHm.\n</think>\nLet me see.\n"
SAID += '<tool_call>\n{"name": "shell", "arguments": {"command": ["ls"]}}\n</tool_call>'


def say(harness: Harness, said: str, **more: Any) -> None:
    harness.script_of = lambda _: harness.say(said, **more)


def ask(harness: Harness, **fields: Any) -> httpx.Response:
    return post(harness.app, "/v1/responses", {"input": "hi", "tools": [SHELL], **fields})


def test_a_turn_of_codex(roomy: Harness) -> None:
    say(roomy, SAID)
    reply = post(roomy.app, "/v1/responses", CODEX)
    assert reply.headers["x-cloudmatrix-warning"] == "ignored fields: tools[2] (web_search)"
    shown = named_events(reply.text)
    for one in shown:
        EVENT.validate_python(one)
        assert described(one)
    response = shown[-1]["response"]
    assert shown[-1]["type"] == "response.completed"
    reasoning, message, call = [one["item"] for one in shown if one["type"] == "response.output_item.done"]
    assert response["output"] == [reasoning, message, call]
    assert (reasoning["content"][0]["text"], reasoning["encrypted_content"]) == ("Hm.", "cloudmatrix:Hm.")
    assert message["content"][0]["text"] == "Let me see."
    assert (call["name"], json.loads(call["arguments"])) == ("shell", {"command": ["ls"]})
    pieces = [one["delta"] for one in shown if one["type"] == "response.function_call_arguments.delta"]
    assert len(pieces) > 2, "arguments come as they are made"
    assert "".join(pieces) == call["arguments"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 2
    assert '"name": "shell"' in roomy.prompt()
    assert "apply_patch" in roomy.prompt()
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None, "what is called is bound"


def test_the_turn_after_it(roomy: Harness) -> None:
    """Codex sends back the previous output: reasoning without its content, and the results of the tools."""
    say(roomy, SAID)
    reasoning, message, call = named_events(post(roomy.app, "/v1/responses", CODEX).text)[-1]["response"]["output"]
    sealed = {name: value for name, value in reasoning.items() if name not in ("content", "status")}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "README.md"}
    say(roomy, "One file.")
    turns = [*CODEX["input"], sealed, message, call, result]
    last = named_events(post(roomy.app, "/v1/responses", {**CODEX, "input": turns}).text)[-1]["response"]
    assert last["output"][-1]["content"][0]["text"] == "One file."
    assert '<think>Hm.</think>Let me see.<tool_call>shell: {"command": ["ls"]}</tool_call>' in roomy.prompt()
    assert "tool: README.md" in roomy.prompt()


def test_a_kept_call_is_answered_by_its_id(caller: Harness) -> None:
    say(caller, SAID)
    first = ask(caller).json()
    Response.model_validate(first)
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "README.md"}
    say(caller, "One file.")
    again = ask(caller, input=[result], previous_response_id=first["id"]).json()
    assert again["output"][0]["content"][0]["text"] == "One file."
    assert '</think>Let me see.<tool_call>shell: {"command": ["ls"]}</tool_call>' in caller.prompt()


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "shell"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]},
    ],
)
def test_a_choice_binds_as_in_chat(caller: Harness, choice: Any) -> None:
    ask(caller, tool_choice=choice, seed=5, temperature=0)
    function = {name: value for name, value in SHELL.items() if name != "type"}
    named = {"type": "function", "function": {"name": "shell"}}
    chat(
        caller.app,
        tools=[{"type": "function", "function": function}],
        tool_choice="required" if choice == "required" else named,
        seed=5,
        temperature=0,
    )
    ours, theirs = (job.sequences[0] for job in caller.backend.jobs)
    assert ours.prompt == theirs.prompt
    assert ours.sampling.grammar is not None
    if not isinstance(choice, dict) or choice["type"] == "function":
        assert ours.sampling == theirs.sampling


def test_a_call_that_is_cut(caller: Harness) -> None:
    cut = SAID[: SAID.index("ls") + 1]
    say(caller, cut, end=False)
    length = len(caller.model.tokenizer.encode(cut, add_special_tokens=False))
    response = ask(caller, max_output_tokens=length).json()
    call = response["output"][-1]
    assert (response["status"], call["status"], call["arguments"]) == ("incomplete", "incomplete", '{"command": ["l')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name"),
        ({"tools": [SHELL, {"type": "custom", "name": "x"}, SHELL]}, "tools[2].name"),
        ({"tools": [{**SHELL, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tools": [{**SHELL, "strict": True, "parameters": {"not": {}}}]}, "tools[0].parameters"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}]}}, "tool_choice.tools.name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [{"type": "function", "name": "shell"}]}},
         "tool_choice"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "shell", "arguments": {}}]},
         "input[0].arguments"),
    ],
)  # fmt: skip
def test_bad_tools_are_refused_by_name(caller: Harness, fields: dict[str, Any], param: str) -> None:
    check(ask(caller, **fields), 400, param)
    assert not caller.backend.jobs


def test_verbosity_is_a_variable_of_the_template(caller: Harness, tmp_path: Path) -> None:
    """One without it is named in the warning."""
    terse = Harness(tool_model(tmp_path, HERMES + "{{ verbosity }}", MARKERS))
    for harness, warned, end in ((terse, False, "low"), (caller, True, "")):
        reply = post(harness.app, "/v1/responses", {"input": "hi", "text": {"verbosity": "low"}})
        assert reply.json()["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert ("x-cloudmatrix-warning" in reply.headers) == warned
        assert harness.prompt().endswith(f"<|assistant|>{end}")


def test_a_rendered_chat_with_tools_is_bound_alike(caller: Harness) -> None:
    function = {name: value for name, value in SHELL.items() if name != "type"}
    for choice in ("auto", "required"):
        asked: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": choice,
                                 "messages": [{"role": "user", "content": "hi"}], "seed": 5}  # fmt: skip
        rendered = post(caller.app, "/v1/chat/completions/render", asked).json()
        assert post(caller.app, "/inference/v1/generate", rendered).status_code == 200
        assert post(caller.app, "/v1/chat/completions", asked).status_code == 200
        ours, theirs = (job.sequences[0] for job in caller.backend.jobs[-2:])
        assert (ours.prompt, ours.sampling) == (theirs.prompt, theirs.sampling)

"""Malformed tools of clients: interpreted as intended, or offered without a grammar; they never refuse a session."""

import json
from typing import Any

import pytest

from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, chat, check, post

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GOOD = {"name": "good", "parameters": CITY}
HI = [{"role": "user", "content": "hi"}]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}'


def tool(parameters: Any, name: str = "odd", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def lets(harness: Harness, text: str) -> bool:
    grammar = harness.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    return may_begin(harness.model, grammar, text)


@pytest.mark.parametrize(
    "parameters",
    [
        {**CITY, "type": ["object"]},
        {**CITY, "type": "OBJECT"},
        {**CITY, "type": "Object"},
        {**CITY, "type": ["OBJECT"]},
        {**CITY, "type": ["object", "null"]},
        {**CITY, "properties": {"city": {"type": "STRING"}}},
        {**CITY, "properties": {"city": {"type": ["string"]}}},
        {**CITY, "type": "OBJECT", "properties": {"city": {"anyOf": [{"type": "STRING"}]}}},
        {"$defs": {"Town": {"type": "STRING"}}, "type": "OBJECT", "properties": {"city": {"$ref": "#/$defs/Town"}},
         "required": ["city"]},
        {key: value for key, value in CITY.items() if key != "type"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_meant_binds(caller: Harness, parameters: Any, choice: str, strict: bool) -> None:
    reply = chat(caller.app, tools=[tool(parameters, strict=strict)], tool_choice=choice)
    assert reply.status_code == 200, reply.text
    assert "x-cloudmatrix-warning" not in reply.headers
    assert lets(caller, call("odd", '{"city": "Oslo"}'))
    assert not lets(caller, call("odd", '{"city": 5'))
    assert not lets(caller, call("odd", '{"town"'))


def test_a_property_named_type_is_no_type(caller: Harness) -> None:
    parameters = {"type": "object", "properties": {"type": {"enum": ["OBJECT"]}}, "required": ["type"]}
    assert chat(caller.app, tools=[tool(parameters)]).status_code == 200
    assert lets(caller, call("odd", '{"type": "OBJECT"}'))
    assert not lets(caller, call("odd", '{"type": "object"'))


ODD = [{"type": "array"}, {"type": "string"}, {"type": ["array", "null"]}, {"type": 5}, ["city"], 5, "city"]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


@pytest.mark.parametrize("parameters", ODD, ids=str)
def test_an_odd_schema_refuses_no_session(caller: Harness, parameters: Any) -> None:
    """It is offered anyway, with any arguments, and named in the warning."""
    odd = {"name": "odd", "parameters": parameters}
    for path, tools, named in (
        ("/v1/chat/completions", [tool(CITY, "good"), tool(parameters)], "tools[1].function.parameters"),
        (MESSAGES, [{"name": "good", "input_schema": CITY}, {"name": "odd", "input_schema": parameters}],
         "tools[1].input_schema"),
        (RESPONSES, [{"type": "function", **GOOD}, {"type": "function", **odd}], "tools[1].parameters"),
    ):  # fmt: skip
        body = {"input": "hi"} if path == RESPONSES else {"messages": HI, "max_tokens": 9}
        reply = post(caller.app, path, {**body, "tools": tools})
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-cloudmatrix-warning"] == f"ignored fields: {named}"
        assert lets(caller, call("odd", '{"a": [1]}'))
        assert not lets(caller, call("good", '{"a": [1]'))
    chosen = chat(caller.app, tools=[tool(CITY, "good"), tool(parameters)], tool_choice="none")
    assert chosen.status_code == 200


def test_an_odd_schema_is_refused_where_its_call_is_demanded(caller: Harness) -> None:
    tools = [tool(CITY, "good"), tool({"type": "array"})]
    named = {"type": "function", "function": {"name": "odd"}}
    for fields in ({"tool_choice": "required"}, {"tool_choice": named}):
        check(chat(caller.app, tools=tools, **fields), 400, "tools[1].function.parameters")
    good = {"type": "function", "function": {"name": "good"}}
    assert chat(caller.app, tools=tools, tool_choice=good).status_code == 200
    check(chat(caller.app, tools=[tools[0], tool({"type": "array"}, strict=True)]), 400, "tools[1].function.parameters")


def test_tools_that_are_too_many_for_a_grammar_are_offered_unbound(caller: Harness) -> None:
    """Names of arguments are constrained as long as the grammar's limits allow."""
    long = {"type": "object", "properties": {"city": {"type": "string", "description": "x" * 140_000}}}
    reply = chat(caller.app, tools=[tool(long, "a"), tool(long, "b")])
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:  # the prompt is too long for the tiny model: that, and not the grammar
        assert reply.json()["error"]["code"] == "context_length_exceeded"
    odd = tool({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}, "b": {}}})
    assert chat(caller.app, tools=[tool(CITY, "good"), odd]).status_code == 200
    assert lets(caller, call("odd", '{"a": "anything", "b": 1}'))


def test_an_empty_list_is_an_empty_object(caller: Harness) -> None:
    for parameters in ({"type": "object", "properties": []}, {"type": "object", "properties": {}, "required": []}):
        reply = chat(caller.app, tools=[tool(parameters)])
        assert reply.status_code == 200, reply.text
        prompt = caller.model.tokenizer.decode(caller.backend.jobs[-1].sequences[0].prompt, skip_special_tokens=False)
        assert json.dumps({"type": "object", "properties": {}})[:-1] in prompt


def test_a_kind_of_tool_that_is_not_here_stays_behind(caller: Harness) -> None:
    """In chat it is skipped if there are functions as well."""
    reply = chat(caller.app, tools=[tool(CITY, "good"), {"type": "web_search"}])
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-cloudmatrix-warning"] == "ignored fields: tools[1] (web_search)"
    check(chat(caller.app, tools=[{"type": "web_search"}]), 400, "tools[0].type")

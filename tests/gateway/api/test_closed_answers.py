"""Objects that a schema of `response_format` leaves open: the effect of `strict`, on every route."""

import json
from typing import Any

import pytest

from serving.grammar.schema import closed_schema
from tests.gateway.api.support import Harness, chat, check, post
from tests.grammar.outputs import accepts

INNER = {"type": "object", "properties": {"b": {"type": "null"}}}
ANY_OBJECT = {"type": "object"}
OPEN = {"type": "object", "properties": {"a": INNER, "free": ANY_OBJECT}, "required": ["a"]}


def schema_of(harness: Harness) -> Any:
    grammar = harness.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    return json.loads(grammar.text)


def form(schema: object, **more: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


def test_strict_closes_every_object(harness: Harness) -> None:
    assert chat(harness.app, **form(OPEN, strict=True)).status_code == 200
    closed = schema_of(harness)
    assert closed["additionalProperties"] is closed["properties"]["a"]["additionalProperties"] is False
    assert closed["properties"]["free"]["additionalProperties"] is False


def test_without_strict_objects_with_names_have_no_others(harness: Harness) -> None:
    assert chat(harness.app, **form(OPEN)).status_code == 200
    closed = schema_of(harness)
    assert closed["additionalProperties"] is closed["properties"]["a"]["additionalProperties"] is False
    assert closed["properties"]["free"] == ANY_OBJECT


@pytest.mark.parametrize("more", [{}, {"strict": True}, {"strict": False}])
def test_what_a_schema_says_itself_stays(more: dict[str, Any], harness: Harness) -> None:
    said = {**OPEN, "additionalProperties": {"type": "null"}, "properties": {}}
    assert chat(harness.app, **form(said, **more)).status_code == 200
    assert schema_of(harness) == said


def test_strict_that_is_false_leaves_objects_open(harness: Harness) -> None:
    assert chat(harness.app, **form(OPEN, strict=False)).status_code == 200
    assert schema_of(harness) == OPEN
    check(chat(harness.app, **form(OPEN, strict="yes")), 400, "response_format.json_schema.strict")


def test_responses_and_messages_close_them_too(harness: Harness) -> None:
    text = {"format": {"type": "json_schema", "name": "x", "schema": OPEN, "strict": True}}
    assert post(harness.app, "/v1/responses", {"model": "tiny", "input": "hi", "text": text}).status_code == 200
    assert schema_of(harness)["additionalProperties"] is False
    body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    body |= {"output_config": {"format": {"type": "json_schema", "schema": OPEN}}}
    assert post(harness.app, "/v1/messages", body).status_code == 200
    assert schema_of(harness)["additionalProperties"] is False


def test_objects_that_hold_together_stay_open() -> None:
    one, two = ({"type": "object", "properties": {name: {"const": 1}}, "required": [name]} for name in "ab")
    for schema in (
        {"allOf": [one, two]},
        {**one, "allOf": [two]},
        {**one, "anyOf": [two, {"type": "object"}]},
        {"$defs": {"one": one, "two": two}, "allOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}]},
        {"$defs": {"two": two}, **one, "$ref": "#/$defs/two"},
    ):
        assert accepts(closed_schema(schema), '{"a": 1, "b": 1}') or accepts(closed_schema(schema), '{"b": 1, "a": 1}')
    assert not accepts(closed_schema({"allOf": [one]}), '{"a": 1, "b": 1}')
    assert not accepts(closed_schema({**one, "anyOf": [{"required": ["a"]}]}), '{"a": 1, "b": 1}')

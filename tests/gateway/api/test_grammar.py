"""Constraints of requests: every spelling becomes one grammar; errors are reported before the request is queued."""

import json
from dataclasses import replace
from typing import Any

import pytest

from serving.values.sequence import Grammar, GrammarKind
from tests.gateway.api.support import Harness, chat, check, complete
from tests.nested import arrays

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
RECORD = Grammar(GrammarKind.JSON_SCHEMA, TEXT)
CLOSED = Grammar(GrammarKind.JSON_SCHEMA, TEXT[:-1] + ',"additionalProperties":false}')
ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
GBNF = 'root ::= "yes" | "no"'
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}


def grammar_in(harness: Harness) -> Grammar | None:
    """Grammar of the one job that was sent."""
    (job,) = harness.backend.jobs
    (grammar,) = {sequence.sampling.grammar for sequence in job.sequences}
    return grammar


def named(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize("send", [chat, complete])
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {}}, None),
        ({"guided_json": None, "guided_json_object": False}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        (named(SCHEMA), CLOSED),
        ({"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": SCHEMA}}}, CLOSED),
        ({"guided_json": SCHEMA}, RECORD),
        ({"guided_json": TEXT}, RECORD),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, RECORD),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
            Grammar(RECORD.kind, TEXT, whitespace_pattern=" ?"),
        ),
        ({"guided_json_object": True}, ANY_OBJECT),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["a", 'b"']}, Grammar(GrammarKind.LARK, 'start: "a" | "b\\""')),
        ({"structured_outputs": {"json": SCHEMA}}, RECORD),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, RECORD),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
            Grammar(GrammarKind.JSON_SCHEMA, TEXT, free_whitespace=True),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            Grammar(GrammarKind.JSON_SCHEMA, TEXT[:-1] + ',"additionalProperties":false}'),
        ),
        ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
        ({"structured_outputs": {"regex": "a+"}}, Grammar(GrammarKind.REGEX, "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.LARK, 'start: "a"')),
        ({"structured_outputs": {"grammar": "start: /a+/"}}, Grammar(GrammarKind.LARK, "start: /a+/")),
    ],
)
def test_all_spellings(send: Any, fields: dict[str, Any], grammar: Grammar | None, harness: Harness) -> None:
    reply = send(harness.app, **fields)
    assert reply.status_code == 200, reply.text
    assert grammar_in(harness) == grammar


def test_gbnf_and_structural_tags_become_lark(harness: Harness) -> None:
    for fields in ({"guided_grammar": GBNF}, {"structured_outputs": {"structural_tag": json.dumps(TAG)}}):
        harness.backend.jobs.clear()
        assert chat(harness.app, **fields).status_code == 200
        grammar = grammar_in(harness)
        assert grammar is not None
        assert grammar.kind is GrammarKind.LARK


def test_a_grammar_goes_to_every_choice(harness: Harness) -> None:
    assert complete(harness.app, guided_regex="a+", n=3, prompt=["a", "b"]).status_code == 200
    assert grammar_in(harness) == Grammar(GrammarKind.REGEX, "a+")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (named("nope"), "response_format.json_schema"),
        (named([1]), "response_format.json_schema"),
        (named({"type": "text"}), "response_format.json_schema"),
        (named({"$ref": "#/nowhere"}), "response_format.json_schema"),
        (named({"$ref": "https://example.org/schema"}), "response_format.json_schema"),
        (named({"not": {"type": "string"}}), "response_format.json_schema"),
        (named({"allOf": [{"type": "string"}, {"type": "integer"}]}), "response_format.json_schema"),
        (named({"type": "string", "minLength": 3, "maxLength": 2}), "response_format.json_schema"),
        ({"guided_json": arrays(200)}, "guided_json"),
        ({"guided_json": json.dumps({"enum": ["x" * 300_000]})}, "guided_json"),
        ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "(?=a)a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "("}, "guided_json"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_regex"),
        ({"guided_json": SCHEMA, **named(SCHEMA)}, "guided_json"),
        ({"guided_json": SCHEMA, "ignore_eos": True}, "ignore_eos"),
        ({"guided_json": SCHEMA, "min_tokens": 2}, "min_tokens"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"jason": SCHEMA}}, "structured_outputs.jason"),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 1}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"structured_outputs": {"structural_tag": {"format": {}}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {**TAG, "triggers": ["x"]}}}, "structured_outputs.structural_tag"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_queued(harness: Harness, fields: dict[str, Any], param: str) -> None:
    reply = chat(harness.app, **fields)
    assert reply.status_code == 400, reply.text
    check(reply, 400, param)
    assert harness.backend.jobs == []


def test_a_model_without_an_end_token_has_no_grammars(harness: Harness) -> None:
    endless = Harness(replace(harness.model, eos_ids=()))
    check(chat(endless.app, guided_regex="a"), 400, "guided_regex", text="end token")

"""JSON schemas that llguidance alone would accept and violate: followed exactly, or refused with a reason."""

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from serving.errors import GrammarError
from serving.grammar.schema import any_of_for_one_of, closed_schema, sound_schema
from serving.grammar.text import schema_text
from tests.grammar.outputs import accepts, drawn, matcher_of

BIG = 2**53 + 1
ANY: dict[str, Any] = {}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize("value", [BIG, -BIG, 1234567890123456789, 2**63 - 1, -(2**63), 2**64, 10**30])
@pytest.mark.parametrize("place", ["const", "enum", "within"])
def test_constants_that_would_become_other_numbers_are_refused(value: int, place: str) -> None:
    schema = {"const": {"const": value}, "enum": {"enum": ["a", value]}, "within": {"const": [{"id": value}]}}[place]
    with pytest.raises(GrammarError, match=r"beyond 2\^53"):
        matcher_of(record(id=schema))


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**53 + 2, 10**18, 2**63 - 1024, 0, -1, 1.5])
def test_other_constants_are_kept(value: float) -> None:
    for schema in ({"const": value}, {"enum": [value]}):
        assert drawn(schema, 0) == str(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": BIG, "maximum": BIG + 8},
        {"type": "integer", "minimum": -BIG - 8, "maximum": -BIG},
        {"type": "integer", "exclusiveMinimum": BIG, "exclusiveMaximum": BIG + 6},
        {"type": "integer", "minimum": 2**63 - 1024},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 2},
        {"type": "integer", "minimum": 0.5, "maximum": 1e300},
        {"type": ["integer", "null"], "minimum": BIG},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9},
        {"type": "number", "exclusiveMinimum": 3, "maximum": 3.25},
        {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0},
        {"type": "number", "minimum": -7.5, "exclusiveMaximum": -7},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5, "multipleOf": 0.25},
        {"type": "number", "maximum": 1e30},
        {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 0.125, "maxLength": 3},
        {"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.5}]},
    ],
)
def test_outputs_are_within_bounds(schema: dict[str, Any]) -> None:
    for seed in range(12):
        text = drawn(schema, seed)
        jsonschema.validate(json.loads(text), schema)


def test_draft_4_excludes_a_bound_by_a_truth_value() -> None:
    schema = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}
    assert not accepts(schema, "0")
    assert accepts(schema, "0.25")
    assert accepts({**schema, "exclusiveMinimum": False}, "0")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": BIG, "maximum": BIG}, "beyond 2"),
        ({"type": "integer", "minimum": 2**63}, "64 bits"),
        ({"type": "integer", "maximum": -(2**70)}, "64 bits"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no integer"),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "no integer"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number"),
        ({"type": "number", "minimum": 1e20}, "not supported"),
        ({"enum": [float("inf")]}, "JSON cannot write"),
        ({"type": "number", "maximum": float("nan")}, "JSON cannot write"),
        ({"type": "string", "default": float("inf")}, "JSON cannot write"),
        ({"type": "object", "additionalProperties": ANY, "minProperties": 2}, "minProperties"),
        ({"type": "object", "patternProperties": {"^a": ANY}, "minProperties": 3, "required": ["ab"]}, "minProperties"),
    ],
)
def test_what_cannot_be_followed_to_the_letter_is_refused(schema: dict[str, Any], words: str) -> None:
    for whole in (schema, record(a=schema), {"$defs": {"a": schema}, "$ref": "#/$defs/a"}):
        with pytest.raises(GrammarError, match=words):
            matcher_of(whole)


def test_fewest_properties_that_cannot_be_met_by_repeating_a_name_stay() -> None:
    free = {"type": "object", "additionalProperties": {"type": "boolean"}}
    assert accepts({**free, "minProperties": 1}, '{"a": true}')
    assert not accepts({**free, "minProperties": 1}, "{}")
    named = {**free, "properties": {"a": ANY, "b": ANY}, "required": ["a", "b"]}
    assert accepts({**named, "minProperties": 2}, '{"a": 1, "b": 2}')
    assert not accepts({**named, "minProperties": 3}, '{"a": 1, "b": 2}')
    assert accepts({**named, "minProperties": 3}, '{"a": 1, "b": 2, "c": true}')


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"enum": [9]}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "age": {"enum": [3]}}, "required": ["kind"]}
NO_KIND = {"type": "object", "properties": {"kind": {"const": "cow"}}}
APART = [
    [CAT, DOG],
    [{"type": "string"}, {"type": "integer"}, {"type": "null"}],
    [{"const": 1, "title": "one"}, {"const": 2}, {"enum": ["a", None]}],
    [{"type": "integer"}, {"type": "string", "enum": ["any"]}],
    [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}],
    [{"type": "number", "exclusiveMaximum": 3}, {"type": "number", "minimum": 3}],
    [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}],
    [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}],
    [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}],
    [{"type": "integer", "minimum": 10}, {"const": 3}],
    [record(a={"type": "string"}), record(b={"type": "string"})],
    [record(a={"type": "string"}), record(a={"type": "null"})],
    [{"anyOf": [CAT, {"type": "null"}]}, DOG],
    [{"allOf": [{"$ref": "#/$defs/cat"}]}, {"$ref": "#/$defs/dog"}],
    [{"type": "object", "properties": {"a": CAT}, "required": ["a"]}, record(a=DOG)],
    [{"type": "string"}],
    [CAT, NO_KIND],
]


@pytest.mark.parametrize("options", APART)
def test_options_that_exclude_each_other_stay(options: list[dict[str, Any]]) -> None:
    for schema in ({"oneOf": options}, record(a={"oneOf": options}), {"type": "array", "items": {"oneOf": options}}):
        matcher_of({**schema, "$defs": {"cat": CAT, "dog": DOG}})


@pytest.mark.parametrize(
    "options",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "string"}, {"type": "string", "maxLength": 5}],
        [{"const": 1}, {"enum": [2, 1.0]}],
        [{"const": "a"}, {"type": "string"}],
        [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}],
        [CAT, {"type": "object"}],
        [NO_KIND, {**NO_KIND, "properties": {"kind": {"const": "cat"}}}],
        [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
        [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$"}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}],
        [ANY, {"type": "null"}],
        [True, {"type": "null"}],
    ],
)
def test_options_that_may_both_hold_are_refused(options: list[Any]) -> None:
    either: dict[str, Any] = {"oneOf": options}
    for schema in (either, record(a=either), {"not": either}, {"type": "array", "items": either}):
        with pytest.raises(GrammarError, match="'oneOf' may both hold"):
            matcher_of({**schema, "$defs": {"cat": CAT}})


def test_what_stands_beside_options_counts_for_each() -> None:
    kinds = [{"properties": {"kind": {"const": one}}} for one in ("cat", "dog")]
    base = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
    matcher_of({**base, "oneOf": kinds})
    with pytest.raises(GrammarError, match="both hold"):
        matcher_of({**base, "required": [], "oneOf": kinds})


def test_the_property_of_a_discriminator_is_required() -> None:
    options = [{k: v for k, v in one.items() if k != "required"} for one in (CAT, DOG)]
    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/cat", "dog": "#/$defs/dog"}},
        "$defs": {"cat": options[0], "dog": options[1]},
    }
    schema = closed_schema(schema)
    assert accepts(schema, '{"kind": "dog", "age": 3}')
    assert not accepts(schema, "{}")
    assert not accepts(schema, '{"kind": "cat", "age": 3}')


def test_hostile_options_are_compared_within_bounds() -> None:
    twisted: Any = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    both = {"anyOf": [*[twisted] * 20, {"type": "null"}]}
    with pytest.raises(GrammarError, match="both hold"):
        sound_schema({"$defs": {"x": both}, "oneOf": [both, both]})
    with pytest.raises(GrammarError, match="both hold"):
        sound_schema({"$defs": {"x": {"type": "array", "items": {"$ref": "#"}}}, "oneOf": [{"$ref": "#/$defs/x"}] * 2})
    sound_schema({"oneOf": [{"const": number} for number in range(3000)]})


def test_options_of_what_need_not_be_followed_are_any() -> None:
    loose = any_of_for_one_of(record(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}))
    assert accepts(loose, '{"a": 5}')


def test_values_are_no_schemas() -> None:
    value = {"type": "object", "oneOf": [True, True], "properties": {"type": "integer"}}
    for rewritten in (
        closed_schema({"const": value}),
        sound_schema({"const": value}),
        any_of_for_one_of({"const": value}),
    ):
        assert rewritten == {"const": value}
    names = {"type": "object", "properties": {"oneOf": {"type": "string"}, "enum": {"type": "null"}}}
    assert sound_schema(names) == names


@pytest.mark.parametrize("schema", [{"type": "integer"}, record(n={"type": "integer", "title": "N"})])
def test_integers_without_bounds_have_64_bits(schema: dict[str, Any]) -> None:
    longest = max(len(drawn(schema, seed)) for seed in range(30))
    assert longest <= len('{"n": -9223372036854774784}')
    text = '{"n": %d}' if schema["type"] == "object" else "%d"
    for number in (0, -1, 2**63 - 1, -(2**63) + 1024, 1234567890123456789):
        assert accepts(schema, text % number)
    assert not accepts(schema, text % 2**63)


@pytest.mark.parametrize(
    "bounds", [{"minimum": 5}, {"maximum": -5}, {"exclusiveMinimum": 0}, {"multipleOf": 7}, {"description": "d"}]
)
def test_integers_with_one_bound_have_64_bits(bounds: dict[str, Any]) -> None:
    schema = {"type": "integer", **bounds}
    for seed in range(12):
        value = json.loads(drawn(schema, seed))
        assert abs(value) < 2**63
        jsonschema.validate(value, schema)


def chain(links: int, required: bool = False) -> dict[str, Any]:
    """A schema whose value is this many references deep."""
    names = [f"d{number}" for number in range(links + 1)]
    definitions: dict[str, Any] = {
        name: {"type": "object", "properties": {"x": {"$ref": f"#/$defs/{after}"}}}
        | ({"required": ["x"]} if required else {})
        for name, after in pairwise(names)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, names[-1]: {"type": "string"}}}


@pytest.mark.parametrize("required", [False, True])
def test_references_that_would_overflow_the_stack_are_refused(required: bool) -> None:
    """llguidance ends the process on a chain of a thousand objects."""
    assert schema_text(chain(150, required))
    for links in (250, 1_000, 3_000):
        with pytest.raises(GrammarError, match="levels deep; at most 600 are allowed"):
            schema_text(chain(links, required))


def test_what_refers_to_itself_counts_once() -> None:
    names = [f"d{number}" for number in range(60)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    definitions = {name: {"type": "object", "properties": {"x": everything}} for name in names}
    assert schema_text({"$ref": "#/$defs/d0", "$defs": definitions})

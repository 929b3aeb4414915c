"""Unbounded repetition by models is bounded; a grammar that exceeds a limit of this server is reported."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from serving.errors import GrammarError
from serving.grammar.matcher import Matcher
from serving.grammar.text import FREE_WHITESPACE, bounded_whitespace, complaint, is_limit
from tests.grammar.outputs import matcher_of
from tests.grammar.storyteller import STOP, tokenizer

PAIR = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}
CLOSED = {**PAIR, "additionalProperties": False}


def with_most_blanks(one: Matcher) -> str:
    """The output of a model that chooses blanks for as long as it may."""
    output: list[int] = []
    texts = [tokenizer().decode([token]) for token in range(tokenizer().vocab_size)]
    rng = random.Random(0)
    while len(output) < 600:
        able = np.flatnonzero(one.allowed())
        blank = [int(token) for token in able if token < len(texts) and texts[token] and not texts[token].strip()]
        token = rng.choice(blank) if blank else int(able[0])
        if token == STOP:
            break
        output.append(token)
        one.take((token,))
    return tokenizer().decode(output)


@pytest.mark.parametrize(
    "options", [{"free_whitespace": True}, {"whitespace_pattern": r"\s*"}, {"whitespace_pattern": "[ \n]+"}]
)
def test_free_whitespace_is_bounded(options: dict[str, Any]) -> None:
    text = with_most_blanks(matcher_of(CLOSED, **options))
    assert json.loads(text) == {"a": 1, "b": 2}
    assert len(text) < 700
    assert max(map(len, re.findall(r"\s+", text))) <= 62


def test_free_whitespace_has_room_for_usual_indentation() -> None:
    value = {"a": {"b": [1, {"c": [2]}]}}
    one = matcher_of({"type": "object", "additionalProperties": {}}, free_whitespace=True)
    for token in tokenizer().encode(json.dumps(value, indent=4), add_special_tokens=False):
        assert one.allowed()[token]
        one.take((token,))


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        (" ?", " {0,1}"),
        (r"\s*", r"[ \t\r\n]{0,20}"),
        (r"[\n\s]+?", r"[\n \t\r\n]{1,20}"),
        (r"\n{2,}", r"\n{2,20}"),
        (r"(\n|[ ]{3})?", r"(?:\n|[ ]{3,3}){0,1}"),
        (r"(?: |\t){30}", r"(?: |\t){30,30}"),
    ],
)
def test_patterns_are_bounded(pattern: str, bounded: str) -> None:
    assert bounded_whitespace(pattern) == bounded


@pytest.mark.parametrize(
    "pattern", [".*", "[^a]", r"\S", "x*", r"\u3000", "(", " )", "(?=a)", r"(\s*)*", " {5000}", "^$"]
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="pattern of whitespace"):
        matcher_of(CLOSED, whitespace_pattern=pattern)


def test_whitespace_of_any_form_is_bounded() -> None:
    whole = re.compile(FREE_WHITESPACE)
    assert all(whole.fullmatch(one) for one in (" ", "\n", "\r\n\t", "  \n\n    ", " " * 20))
    assert not any(whole.fullmatch(one) for one in ("", "\n\n\n", " " * 21, "\u3000"))


def optional(count: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(count)},
        "additionalProperties": False,
    }


def test_many_optional_properties_can_be_followed() -> None:
    matcher_of(optional(700))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (optional(1100), "too large for this server: too many properties"),
        ({"type": "object", "properties": {"a": optional(1100)}, "required": ["a"]}, "too large for this server"),
        ({"type": "array", "minItems": 100_000, "items": {"type": "null"}}, "'minItems' is more than"),
        ({"type": "string", "minLength": 100_000}, "'minLength' is more than"),
        ({"$ref": "#"}, "'#' always leads back to itself"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "leads back"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}, "leads back"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "leads back"),
        (
            {
                "$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}},
                "anyOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/a"}]}],
            },
            "leads back",
        ),
    ],
)
def test_reasons_are_the_schema_s_and_never_the_library_s_state(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=words) as refused:
        matcher_of(schema)
    assert not re.search(r"<state>|Parser|NoExtension|compute_time|\{ \"", str(refused.value))


def test_recursion_with_an_end_stays() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}
    matcher_of({"$defs": {"tree": tree}, "$ref": "#/$defs/tree"})
    chain = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["next"],
    }
    matcher_of(chain)
    matcher_of({"type": "array", "items": {"$ref": "#"}})


def test_complaints_show_no_state() -> None:
    assert complaint("NoExtensionBias <state> Tokens: 0 tokens") == "no output of finite length can follow it"
    assert complaint("bad regex\n<state>\nTokens") == "bad regex"
    row = complaint("Parser Error: Current row has 2799 items; max is 2000; consider ... <state>")
    assert is_limit(row)
    assert is_limit(complaint("lexer configuration (grammar) too big (limit for this grammar: 5)"))
    assert not is_limit(complaint('Unimplemented keys: ["not"]'))

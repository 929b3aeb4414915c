"""Grammars in llguidance's syntax, and its error messages for refused ones."""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from hardware.nesting import parse_json
from serving.errors import GrammarError
from serving.grammar.schema import sound_schema
from serving.grammar.whitespace import FREE_WHITESPACE, bounded_whitespace
from serving.values.sequence import TOO_LARGE, Grammar, GrammarKind

MOST_TEXT = 256 << 10
"""Characters of a grammar."""
MOST_RULES = 500
"""Rules and terminals of a client's grammar.

llguidance follows them by recursion: a chain of 1,500 takes two seconds, one of 3,000 overflows the stack and ends the
process. Grammars of whole programming languages have fewer than 500.
"""
LEXER_FUEL = 200_000
"""Work that a grammar's first mask may take, in llguidance's units: about 0.2 s at worst, as for `a{1000}{1000}`.

A list of 5,000 texts and a text of at most 20,000 characters need far less."""
MOST_OPEN = 4000
"""Places in a grammar where an output may be at once: four for an optional property that may come next.

At worst a mask takes 10 ms then."""
LIMITS = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, max_items_in_row=MOST_OPEN)
_DEFINITION = re.compile(r"^[ \t]*[?!]*\w+[^\n:\"/]*:", re.MULTILINE)
_NOT_KNOWN = "Unimplemented keys: "
_REASONS = (
    (re.compile(r"items; max is|Too many items|max_items"), TOO_LARGE + "too many properties or items may come next"),
    (
        re.compile(r"symbols\) too big|schema too large|grammar too large|too many expressions"),
        TOO_LARGE + "it has too many parts",
    ),
    (
        re.compile(r"lexer configuration|too many states|[Ff]uel|LexerTooComplex|DNF too large"),
        TOO_LARGE + "its texts and patterns take too long to follow",
    ),
    (re.compile("NoExtension"), "no output of finite length can follow it"),
)
"""The library's error messages, with the text for the caller."""
_MOST_WORDS = 300
"""Characters of the library's complaint that a caller is shown."""


def check_size(lark: str) -> None:
    """Refuse a client's grammar in Lark that is too large to be compiled safely.

    Raises: GrammarError.
    """
    if len(lark) > MOST_TEXT:
        raise GrammarError(f"it has {len(lark)} characters; at most {MOST_TEXT} are allowed")
    if (rules := len(_DEFINITION.findall(lark))) > MOST_RULES:
        raise GrammarError(f"{TOO_LARGE}it has {rules} rules; at most {MOST_RULES} are allowed")


def guidance_text(grammar: Grammar) -> str:
    """The grammar as llguidance reads it.

    Raises: GrammarError if it is too long, or a schema that is no JSON object.
    """
    if len(grammar.text) > MOST_TEXT:
        raise GrammarError(f"it has {len(grammar.text)} characters; at most {MOST_TEXT} are allowed")
    if grammar.kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(grammar.text))
    if grammar.kind is GrammarKind.LARK:
        return str(LLMatcher.grammar_from_lark(grammar.text))
    try:
        text = schema_text(parse_json(grammar.text))
        return str(LLMatcher.grammar_from_json_schema(text, overrides=json_options(grammar)))
    except ValueError as error:
        raise GrammarError(complaint(str(error))) from error


def schema_text(schema: object, **more: object) -> str:
    """A schema as llguidance can follow it to the letter.

    Args:
        more: keywords that are added at its top.
    Raises: GrammarError.
    """
    if not isinstance(schema, Mapping):
        raise GrammarError("a JSON schema must be an object")
    try:
        return json.dumps({**sound_schema(schema), **more}, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise GrammarError("it has a number that JSON cannot write") from error
    except RecursionError:
        raise GrammarError(f"{TOO_LARGE}its references lead too deep") from None


def json_options(grammar: Grammar) -> Any:  # noqa: ANN401
    """Options of llguidance's compiler of schemas: the form of whitespace, and `oneOf` as `anyOf`.

    Raises: GrammarError for a pattern of whitespace that JSON cannot have.
    """
    options: dict[str, object] = {"coerce_one_of": True}
    if grammar.whitespace_pattern:
        return {**options, "whitespace_pattern": bounded_whitespace(grammar.whitespace_pattern)}
    if grammar.free_whitespace:
        return {**options, "whitespace_pattern": FREE_WHITESPACE}
    return {**options, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def complaint(text: str) -> str:
    """The library's words in one bounded line: what is wrong with the grammar, without the state of the library."""
    line = " ".join(text.partition("<state>")[0].split())
    for pattern, words in _REASONS:
        if pattern.search(text):
            return words
    if line.startswith(_NOT_KNOWN):
        line = f"it uses keywords that are not supported: {line.removeprefix(_NOT_KNOWN).strip('[]')}"
    return line if len(line) <= _MOST_WORDS else line[:_MOST_WORDS] + " ..."


def is_limit(words: str) -> bool:
    """Whether a complaint is about a bound of this server, not about the output."""
    return words.startswith(TOO_LARGE)

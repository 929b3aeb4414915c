"""Grammars in llguidance's syntax, and its error messages for refused ones."""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from hardware.nesting import parse_json
from serving.errors import GrammarError
from serving.grammar.schema import sound_schema
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


# Whitespace in JSON that a request leaves to the model: bounded, because models go on with blanks to the end.

MOST_BLANKS = 20
"""Repetitions of what a pattern repeats without a bound, and blanks of a line."""
FREE_WHITESPACE = rf"[ \t]{{1,{MOST_BLANKS}}}|[ \t]{{0,{MOST_BLANKS}}}(\r?\n[ \t]{{0,{MOST_BLANKS}}}){{1,2}}"
"""Whitespace of any form: blanks, at most two line breaks, indentation."""
_MOST_CHARACTERS = 100
"""Characters that a pattern may match: nested repetitions multiply."""
_PIECE = re.compile(
    r"(?P<atom>[ \n\t\r]|\\[ntrs]|\[(?:[ \n\t\r]|\\[ntrs])+\])"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?P<least>\d{1,4})(?P<comma>,(?P<most>\d{1,4})?)?\})\??"
)


def bounded_whitespace(pattern: str) -> str:
    """A request's pattern of whitespace, with a bound on all that it repeats.

    Raises: GrammarError for what is no such pattern, matches more than JSON's whitespace, or too much of it.
    """
    found: list[str] = []
    widths = [[0, 0]]
    """For each open group: the longest alternative so far, and this one."""
    last, place = 0, 0
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        if piece is None:
            raise _refused("may hold blanks, tabs and line breaks, groups, '|' and repetitions, and nothing else")
        place = piece.end()
        if piece["atom"] is not None:
            found.append(piece["atom"].replace(r"\s", r" \t\r\n" if piece["atom"][0] == "[" else r"[ \t\r\n]"))
            last = 1
        elif piece["open"] is not None:
            found.append("(?:")
            widths.append([0, 0])
            continue
        elif piece["bar"] is not None:
            found.append("|")
            widths[-1] = [max(widths[-1]), 0]
            continue
        elif piece["close"] is not None:
            if len(widths) == 1:
                raise _refused("is no regex: a group ends that has not begun")
            found.append(")")
            last = max(widths.pop())
        else:
            least, most = _times(piece)
            found.append(f"{{{least},{most}}}")
            widths[-1][1] -= last
            last *= most
        widths[-1][1] += last
    if len(widths) > 1:
        raise _refused("is no regex: a group has no end")
    if (longest := max(widths[0])) > _MOST_CHARACTERS:
        raise _refused(f"may match {longest} characters, and at most {_MOST_CHARACTERS} are allowed")
    return "".join(found)


def _times(piece: re.Match[str]) -> tuple[int, int]:
    """How often a piece may come: least and most."""
    sign = piece["times"]
    if sign in "*+?":
        return int(sign == "+"), 1 if sign == "?" else MOST_BLANKS
    least = int(piece["least"])
    return least, least if piece["comma"] is None else int(piece["most"] or max(least, MOST_BLANKS))


def _refused(words: str) -> GrammarError:
    return GrammarError(f"its pattern of whitespace {words}")

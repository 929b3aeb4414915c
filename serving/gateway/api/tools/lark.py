"""Parts of grammars for calls, in llguidance's dialect of Lark, shared by the families' rules."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.gateway.api.tools.arguments import types_of
from serving.gateway.api.tools.custom_tools import INPUT
from serving.gateway.api.tools.marks import ToolMarks
from serving.grammar.text import json_options, schema_text
from serving.values.sequence import Grammar, GrammarKind

_OPTIONS = json_options(Grammar(GrammarKind.JSON_SCHEMA, ""))


@dataclass(frozen=True, slots=True)
class CallRule:
    """A callable tool: its name, and the schema of its arguments.

    Args:
        text: grammar of a custom tool's input, its only argument, as escaped in a JSON string.
    """

    name: str
    schema: Mapping[str, Any]
    text: str | None = None


class Spelling:
    """Spelling of markers, texts and values in grammars for one vocabulary.

    Args:
        stop: id that represents all stop tokens, see `Vocabulary`.
    """

    def __init__(self, marks: ToolMarks, stop: int) -> None:
        self._marks = marks
        self._stop = stop

    def has_token(self, *names: str) -> bool:
        """Whether markers are tokens of the vocabulary."""
        return all(name in self._marks.tokens for name in names)

    def mark(self, name: str) -> str:
        """A marker: its token, or its text if it has none."""
        token = self._marks.tokens.get(name)
        return quoted(name) if token is None else f"<[{token}]>"

    def all_but(self, *names: str) -> str:
        """Any single token except these markers, which must be tokens."""
        kept_out = sorted({self._marks.tokens[name] for name in names} | {self._stop})
        return f"<[^{','.join(map(str, kept_out))}]>"


def quoted(text: str) -> str:
    """A literal text."""
    return json.dumps(text, ensure_ascii=False)


def json_of(schema: Mapping[str, Any] | str, options: Mapping[str, Any] = _OPTIONS) -> str:
    """A JSON value.

    Args:
        schema: the schema, or its JSON text.
        options: of llguidance's schema compiler.
    """
    plain = parse_json(schema) if isinstance(schema, str) else schema
    return "%json " + schema_text(plain, **{"x-guidance": options})


def arguments_of(tool: CallRule) -> str:
    """All arguments of a call as one JSON object."""
    if tool.text is None:
        return json_of(tool.schema)
    return f"{quoted(json.dumps({INPUT: ''})[:-2])} {_nested(tool.text)} {quoted(chr(34) + '}')}"


def _nested(grammar: str) -> str:
    return f"%lark {{\n{grammar}\n}}"


def either(options: Sequence[str]) -> str:
    """One of several alternatives."""
    return " | ".join(options)


def further(rule: str, most: int | None) -> str:
    """Repetitions of a rule after its first occurrence.

    Args:
        most: occurrences in total; None = any number.
    """
    if most is None:
        return f" {rule}*"
    return f" {rule}{{0,{most - 1}}}" if most > 1 else ""


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """A family's rules for one argument.

    Args:
        before_text, before_value: from its name, the text before a string, and before any other value.
        raw: a string of any length, including its end.
        after: text after a JSON value, or after a string from a fixed set.
    """

    before_text: Callable[[str], str]
    before_value: Callable[[str], str]
    raw: str
    after: str


def call_heads(
    tools: Sequence[CallRule], form: ArgumentForm, name_of: Callable[[CallRule], str]
) -> tuple[list[str], list[str]]:
    """One alternative for each tool, its name and its arguments, and the rules that they need.

    Args:
        name_of: the text before the arguments.
    """
    heads: list[str] = []
    rules: list[str] = []
    for number, tool in enumerate(tools):
        pieces = [name_of(tool)]
        for index, (key, schema, required) in enumerate(_properties(tool.schema)):
            name = f"a{number}_{index}"
            rules += _argument(tool, key, schema, form, name)
            pieces.append(name if required else f"{name}?")
        heads.append(" ".join(pieces))
    return heads, rules


def _argument(tool: CallRule, key: str, schema: Mapping[str, Any], form: ArgumentForm, name: str) -> list[str]:
    if tool.text is not None:
        value = f"{quoted(chr(34))} {_nested(tool.text)} {quoted(chr(34))}"
        return [f"{name}: {form.before_value(key)} {name}_v {form.after}", f"{name}_v: {value}"]
    types = types_of(schema, tool.schema)
    if types and "string" not in types:
        value = json_of({**schema, **_definitions(tool.schema)})
        return [f"{name}: {form.before_value(key)} {name}_v {form.after}", f"{name}_v: {value}"]
    words = schema.get("enum")
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return [f"{name}: {form.before_text(key)} ({either([quoted(word) for word in words])}) {form.after}"]
    return [f"{name}: {form.before_text(key)} {form.raw}"]


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    properties = schema.get("properties")
    required = schema.get("required")
    for key, own in properties.items() if isinstance(properties, Mapping) else ():
        yield key, own if isinstance(own, Mapping) else {}, isinstance(required, list) and key in required


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}

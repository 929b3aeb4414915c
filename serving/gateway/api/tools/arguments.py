"""Assembles arguments that arrive one by one into one JSON object."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.gateway.api.tools.reader import Emit, Reader, Steps

# Texts between tags, in XML-like families: unescaped, so that a text may contain the tag itself.
#
# A tag closes a text only if the expected syntax follows it: `</parameter>` within a sentence is text.

_NO, _WAIT = -1, -2


@dataclass(frozen=True, slots=True)
class Closing:
    """One possible end of a text.

    Args:
        text: closing text.
        behind: texts of which one must follow, after white space.
        at_end: whether the end of the output may follow instead.
        stays: whether the closing text stays in the buffer, because it is not part of the tag.
    """

    text: str
    behind: tuple[str, ...]
    at_end: bool = True
    stays: bool = False

    def verdict(self, buffer: str, at: int, *, ended: bool) -> int:
        """Length of the closing text if the text ends at `at`; `_NO`; or `_WAIT` if more output is needed."""
        if not buffer.startswith(self.text, at):
            part = buffer[at:]
            return _WAIT if not ended and len(part) < len(self.text) and self.text.startswith(part) else _NO
        rest = buffer[at + len(self.text) :].lstrip()
        if any(rest.startswith(word) for word in self.behind) or (ended and not rest and self.at_end):
            return 0 if self.stays else len(self.text)
        partly = not ended and any(word.startswith(rest) for word in self.behind)
        return _WAIT if partly else _NO


def raw_text(reader: Reader, closings: Sequence[Closing], emit: Emit) -> Steps[bool]:
    """Emit a text up to the tag that closes it, and consume the tag. Returns: whether it was closed."""
    firsts = "".join({closing.text[0] for closing in closings})
    while True:
        buffer, at = reader.buffer, 0
        while True:
            at = min((i for i in (buffer.find(first, at) for first in firsts) if i >= 0), default=-1)
            if at < 0:
                emit(reader.take(len(buffer)))
                break
            verdicts = [closing.verdict(buffer, at, ended=reader.ended) for closing in closings]
            size = next((one for one in verdicts if one >= 0), _NO)
            if size >= 0:
                emit(reader.take(at))
                reader.take(size)
                return True
            if _WAIT in verdicts:
                emit(reader.take(at))
                break
            at += 1
        if not (yield from reader.more()) and not reader.buffer:
            return False


# Assembles arguments that arrive one by one into one JSON object.

_STRING = frozenset({"string"})


class Arguments:
    """Arguments of one call, which the constructor opens."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._schema = reader.tools.get(name)
        self._any = False
        reader.calls.open(name)

    def argument(self, key: str, closings: Sequence[Closing], *, is_string: bool | None = None) -> Steps[bool]:
        """Read one argument's raw text up to its end.

        Args:
            is_string: whether it is a string, if known; None = use the tool's schema.
        Returns: whether it was closed.
        """
        reader = self._reader
        types = types_of(property_schema(self._schema, key), self._schema)
        if is_string is not None:
            types = _STRING if is_string else frozenset({"null", "boolean", "number", "integer", "array", "object"})
        head = ("{" if not self._any else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        self._any = True
        if types == _STRING:  # may be long, so it is emitted as it arrives
            reader.calls.write(head + '"')
            closed = yield from raw_text(reader, closings, reader.calls.write_string)
            if closed:
                reader.calls.write('"')
            return closed
        pieces: list[str] = []
        closed = yield from raw_text(reader, closings, pieces.append)
        if closed:
            reader.calls.write(head + as_json(reader.marks.spelled("".join(pieces)), types))
        return closed

    def end(self) -> None:
        """Finish the call."""
        self._reader.calls.write("}" if self._any else "{}")
        self._reader.calls.close()


# Conversion of arguments that a family writes as raw text to JSON values that match their schema.

_NAMES = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling of JSON's constants."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_DEEP = 8
"""Levels of alternatives that are searched."""


def types_of(schema: object, root: Mapping[str, Any] | None = None, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema may allow; empty = any.

    Args:
        root: the schema that its references refer to.
    """
    if not isinstance(schema, Mapping) or depth > _DEEP:
        return frozenset()
    if isinstance(found := _referred(schema, root), Mapping):
        return types_of(found, root, depth + 1)
    if isinstance(kind := schema.get("type"), str):
        return frozenset({kind})
    if isinstance(kind, Sequence):
        return frozenset(one for one in kind if isinstance(one, str))
    for name in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(name), Sequence) and options:
            each = [types_of(one, root, depth + 1) for one in options]
            return frozenset().union(*each) if all(each) else frozenset()
    values: Sequence[object] = [schema["const"]] if "const" in schema else []
    if isinstance(options := schema.get("enum"), Sequence):
        values = options
    return frozenset(_TYPES.get(type(value), "null") for value in values)


def property_schema(parameters: Mapping[str, Any] | None, name: str) -> object:
    """Schema of one argument; None if there is none."""
    properties = (parameters or {}).get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of an argument that was written raw.

    Text stays a string if only a string is allowed, or if it spells no other allowed value.
    """
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    plain = text.strip()
    plain = _NAMES.get(plain, plain)
    try:
        value = parse_json(plain)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    kind = "null" if value is None else _TYPES[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types) or (kind == "number" and "integer" in types)
    if types and not fits and "string" in types:
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(text, ensure_ascii=False)
    return plain


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> object:
    place = schema.get("$ref")
    if not isinstance(place, str) or not place.startswith("#/"):
        return None
    found: object = root
    for step in place[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found

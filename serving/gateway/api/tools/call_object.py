"""Calls written as one JSON object, name and arguments in either order: `{"name": "f", "arguments": {"x": 1}}`."""

import re
from collections.abc import Callable
from enum import Enum

from hardware.nesting import parse_json
from serving.gateway.api.tools.reader import Emit, Reader, Steps

_ARGUMENTS = ("arguments", "parameters")


class CallOutcome(Enum):
    """Result of reading an object."""

    CALL = "call"
    OTHER = "a whole object that is no call"
    BROKEN = "no object, or one that was cut off"


class CallObject:
    """Reads one object.

    Args:
        is_tool: whether a name makes it a call.
        needs_arguments: whether an object without arguments is not a call.
    """

    def __init__(
        self, reader: Reader, is_tool: Callable[[str], bool] = lambda _: True, *, needs_arguments: bool = False
    ) -> None:
        self._reader = reader
        self._is_tool = is_tool
        self._needs_arguments = needs_arguments
        self._name: str | None = None
        self._arguments: str | None = None
        self._opened = False
        self._seen: list[str] = []

    @property
    def raw(self) -> str:
        """The text, as far as it was read, of an object that is not a call."""
        return "".join(self._seen)

    def read(self) -> Steps[CallOutcome]:
        """Read the object, and emit the call if it is one."""
        whole = yield from self._object()
        if not self._opened and whole and self._name is not None and self._is_tool(self._name):
            if self._arguments is not None or not self._needs_arguments:
                self._reader.calls.open(self._name)
                self._reader.calls.write(self._arguments or "{}")
                self._opened = True
        if self._opened:
            if whole:
                self._reader.calls.close()
            return CallOutcome.CALL
        return CallOutcome.OTHER if whole else CallOutcome.BROKEN

    def _object(self) -> Steps[bool]:
        """Read every member. Returns: whether the object is complete."""
        reader = self._reader
        if not (yield from self._sign("{")):
            return False
        if (yield from self._sign("}")):
            return True
        while True:
            key: list[str] = []
            if (yield from self._front()) != '"' or not (yield from json_value(reader, key.append)):
                self._seen += key
                return False
            self._seen += key
            if not (yield from self._sign(":")) or not (yield from self._member("".join(key))):
                return False
            if (yield from self._sign("}")):
                return True
            if not (yield from self._sign(",")):
                return False

    def _member(self, key: str) -> Steps[bool]:
        """Read the value of one key."""
        reader = self._reader
        front = yield from self._front()
        if key[1:-1] in _ARGUMENTS and front == "{" and self._name is not None and self._is_tool(self._name):
            reader.calls.open(self._name)
            self._opened = True
            return (yield from json_value(reader, reader.calls.write))
        value: list[str] = []
        whole = yield from json_value(reader, value.append)
        self._seen += value
        text = "".join(value)
        if whole and key[1:-1] == "name":
            self._name = _text(text)
        elif whole and key[1:-1] in _ARGUMENTS:
            self._arguments = _arguments(text)
        return whole

    def _front(self) -> Steps[str]:
        """The next character that is not white space, without consuming it."""
        while True:
            front = yield from self._reader.front()
            if not front.isspace():
                return front
            self._seen.append(self._reader.take(1))

    def _sign(self, sign: str) -> Steps[bool]:
        """Consume one character of JSON syntax, if it is next."""
        if (yield from self._front()) != sign:
            return False
        self._seen.append(self._reader.take(1))
        return True


def _text(value: str) -> str | None:
    """A JSON string's text."""
    try:
        text = parse_json(value)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _arguments(value: str) -> str | None:
    """Arguments that were not written as an object after the name: before it, encoded twice, or as null."""
    if value.startswith("{"):
        return value
    if value == "null":
        return "{}"
    inner = _text(value)
    return inner if inner is not None and inner.strip().startswith("{") else None


# One JSON value in an output, delimited by its brackets and quotes: a string's content is text, whatever it spells.

_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")


def json_value(reader: Reader, emit: Emit) -> Steps[bool]:
    """Emit one value unchanged.

    Returns: whether it is complete. A marker outside of a string ends the value, and is not consumed.
    """
    first = yield from reader.past_space()
    if first == '"':
        emit(reader.take(1))
        return (yield from _string(reader, emit))
    if first in ("{", "["):
        return (yield from _container(reader, emit))
    return (yield from _scalar(reader, emit))


def _string(reader: Reader, emit: Emit) -> Steps[bool]:
    """Emit the rest of a string, whose first quote has been consumed."""
    while True:
        found = _IN_STRING.search(reader.buffer)
        if found is None:
            emit(reader.take(len(reader.buffer)))
        elif found[0] == '"':
            emit(reader.take(found.end()))
            return True
        elif found.end() < len(reader.buffer):
            emit(reader.take(found.end() + 1))  # with the escaped character
            continue
        else:
            emit(reader.take(found.start()))
        if not (yield from reader.more()):
            emit(reader.take(len(reader.buffer)))
            return False


def _container(reader: Reader, emit: Emit) -> Steps[bool]:
    depth, stops = 0, re.compile(f'[{{}}\\[\\]"{re.escape(reader.marks.all)}]')
    while True:
        found = stops.search(reader.buffer)
        if found is None:
            emit(reader.take(len(reader.buffer)))
            if not (yield from reader.more()):
                return False
            continue
        char = found[0]
        if char in reader.marks.all:
            emit(reader.take(found.start()))
            return False
        emit(reader.take(found.end()))
        if char == '"':
            if not (yield from _string(reader, emit)):
                return False
        elif char in "{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return True


def _scalar(reader: Reader, emit: Emit) -> Steps[bool]:
    """Emit a number or a word, up to a character that cannot be part of it."""
    length = 0
    while True:
        marks = reader.marks.all
        found = _SCALAR_END.search(reader.buffer)
        at = min((i for i in map(reader.buffer.find, marks) if i >= 0), default=len(reader.buffer))
        end = min(found.start() if found else len(reader.buffer), at)
        length += end
        whole = end < len(reader.buffer)
        emit(reader.take(end))
        if whole or not (yield from reader.more()):
            return length > 0

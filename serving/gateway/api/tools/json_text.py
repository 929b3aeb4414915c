"""One JSON value in an output, delimited by its brackets and quotes: a string's content is text, whatever it spells."""

import re

from serving.gateway.api.tools.reader import Emit, Reader, Steps

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

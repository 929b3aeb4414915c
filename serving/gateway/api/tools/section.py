"""A section of calls between tokens of their own, in DeepSeek and Kimi: BEGIN_ALL (BEGIN call END)* END_ALL."""

from collections.abc import Callable

from serving.gateway.api.tools.json_text import json_value
from serving.gateway.api.tools.reader import Reader, Steps


def read_section(reader: Reader, begin: str, end_all: str, read_call: Callable[[Reader], Steps[None]]) -> Steps[None]:
    """Read every call of a section, whose first marker is next.

    Args:
        begin: character of the marker before each call. end_all: of the marker after the section.
        read_call: reads a call after `begin`.
    """
    reader.take(1)
    while (front := (yield from reader.skip_to(begin + end_all))) == begin:
        reader.take(1)
        yield from read_call(reader)
    if front:
        reader.take(1)


def read_arguments(reader: Reader, ends: str) -> Steps[None]:
    """Read arguments of the open call, and skip text up to one of these characters, which is not consumed."""
    if (yield from reader.past_space()) == "{":
        yield from json_value(reader, reader.calls.write)
    elif reader.buffer:
        reader.calls.write("{}")
    yield from reader.skip_to(ends)
    reader.calls.close()

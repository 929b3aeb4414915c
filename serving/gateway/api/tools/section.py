"""A section of calls between tokens of their own, of DeepSeek and Kimi: BEGIN_ALL (BEGIN call END)* END_ALL."""

from collections.abc import Callable

from serving.gateway.api.tools.json_text import json_value
from serving.gateway.api.tools.reader import Reader, Steps


def read_section(reader: Reader, begin: str, end_all: str, read_call: Callable[[Reader], Steps[None]]) -> Steps[None]:
    """Every call of a section, whose first marker is in front.

    Args:
        begin: character of the marker before each call. end_all: of the one behind the section.
        read_call: reads from behind `begin`.
    """
    reader.take(1)
    while (front := (yield from reader.skip_to(begin + end_all))) == begin:
        reader.take(1)
        yield from read_call(reader)
    if front:
        reader.take(1)


def read_arguments(reader: Reader, ends: str) -> Steps[None]:
    """Arguments of the call that is open, and what is left up to one of these characters, which stays."""
    if (yield from reader.past_space()) == "{":
        yield from json_value(reader, reader.calls.write)
    elif reader.buffer:
        reader.calls.write("{}")
    yield from reader.skip_to(ends)
    reader.calls.close()

"""Mistral: calls after a token, each as its name and arguments, or in older models all in one JSON list.

[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[ARGS]{}
[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]
"""

import json
import re
import secrets
import string
from collections.abc import Sequence
from hashlib import blake2b

from serving.gateway.api.tools.call_object import CallObject, CallOutcome, json_value
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_PREFIX = re.compile("(call|toolu|fc)_")
_FORM = re.compile("[a-zA-Z0-9]{9}")
_SIGNS = string.ascii_letters + string.digits


def _new_id() -> str:
    return "".join(secrets.choice(_SIGNS) for _ in range(9))


def _read(reader: Reader) -> Steps[None]:
    marks = reader.marks
    reader.take(1)
    if (yield from reader.past_space()) == "[":
        yield from _list(reader)
        return
    head, stop = yield from reader.collect(marks.chars((_BEGIN, _ARGUMENTS, _ID)) + "{")
    own_id = None
    if stop == marks[_ID]:
        reader.take(1)
        name, stop = yield from reader.collect(marks.chars((_BEGIN, _ARGUMENTS)))
        own_id = name.strip() or None
    if stop == marks[_ARGUMENTS]:
        reader.take(1)
    elif stop != "{":
        if not reader.ended or head.strip().count(" "):  # not a name that was cut off
            reader.prose.write(head)
        return
    reader.calls.open(head.strip(), own_id)
    if (yield from reader.past_space()) == "{":
        yield from json_value(reader, reader.calls.write)
    elif reader.buffer:
        reader.calls.write("{}")


def _list(reader: Reader) -> Steps[None]:
    """Read all calls of a list."""
    reader.take(1)
    while (yield from reader.past_space()) == "{":
        if (yield from CallObject(reader).read()) is CallOutcome.BROKEN:
            return
        if (yield from reader.past_space()) == ",":
            reader.take(1)
    if reader.buffer.startswith("]"):
        reader.take(1)


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """Names and arguments, or a list if the vocabulary has no marker between them."""
    begin, arguments = spelling.mark(_BEGIN), spelling.mark(_ARGUMENTS)
    values = [f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)]
    if spelling.has_token(_ARGUMENTS):
        heads = [f"{quoted(tool.name)} {arguments} a{i}" for i, tool in enumerate(tools)]
        return [f"calls: call{further('call', most)}", f"call: {begin} ({either(heads)})", *values]
    heads = [f"{quoted(_head(tool))} a{i}" for i, tool in enumerate(tools)]
    more = further('(", " call)', most)
    return [f'calls: {begin} " [" call{more} "]"', f'call: ({either(heads)}) "}}"', *values]


def _head(tool: CallRule) -> str:
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '


def _history_id(own_id: str, function: str, before: int) -> str:
    """Nine letters or digits: the model's own id, if another dialect only added its prefix."""
    bare = _PREFIX.sub("", own_id)
    if _FORM.fullmatch(bare):
        return bare
    number = int.from_bytes(blake2b((own_id or f"{function}:{before}").encode(), digest_size=8).digest())
    return "".join(_SIGNS[number // len(_SIGNS) ** place % len(_SIGNS)] for place in range(9))


_MARKS = (_BEGIN, _ARGUMENTS, _ID)
MISTRAL = Family(
    name="mistral",
    marks=(*_MARKS, "[THINK]", "[/THINK]"),
    triggers=(_BEGIN,),
    rules=_rules,
    read_calls=_read,
    think=("[THINK]", "[/THINK]"),
    trims=False,
    new_id=_new_id,
    history_id=_history_id,
)
MISTRAL_TEXT = Family(
    name="mistral-think-text",
    marks=(*_MARKS, "<think>", "</think>"),
    triggers=(_BEGIN,),
    rules=_rules,
    read_calls=_read,
    trims=False,
    new_id=_new_id,
    history_id=_history_id,
)

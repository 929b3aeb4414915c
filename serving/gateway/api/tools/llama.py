"""Llama 3: a call is the whole answer, or the text after a token.

    {"name": "weather", "parameters": {"city": "Oslo"}}

An object that is not a call, or names no offered tool, is text.
"""

import json
from collections.abc import Sequence

from serving.gateway.api.tools.call_object import CallObject, CallOutcome
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_TAG = "<|python_tag|>"


def _read_all(reader: Reader) -> Steps[None]:
    tag = reader.marks[_TAG]
    if reader.tools:
        space = ""
        while (front := (yield from reader.front())).isspace():
            space += reader.take(1)
        if front != "{":
            reader.prose.write(space)
        yield from _calls(reader)
        while (yield from reader.copy_to(tag, reader.prose.write)):
            yield from _calls(reader)
    yield from reader.copy_to("", reader.prose.write)
    reader.prose.flush()


def _calls(reader: Reader) -> Steps[None]:
    """Read consecutive calls, up to the first object that is not a call."""
    tag = reader.marks[_TAG]
    while True:
        if (yield from reader.front()) == tag:
            reader.take(1)
            yield from reader.past_space()
        if (yield from reader.front()) != "{":
            return
        call = CallObject(reader, lambda name: name in reader.tools, needs_arguments=True)
        if (yield from call.read()) is not CallOutcome.CALL:
            reader.prose.write(call.raw)
            return
        reader.calls.close()
        if (yield from reader.past_space()) in (";", ","):
            reader.take(1)
            yield from reader.past_space()


def _none(reader: Reader) -> Steps[None]:
    yield from reader.front()


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """One call; the format does not support several."""
    heads = [f"{quoted(_head(tool))} a{i}" for i, tool in enumerate(tools)]
    return [f'calls: ({either(heads)}) "}}"', *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools))]


def _head(tool: CallRule) -> str:
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "parameters": '


LLAMA = Family(
    name="llama",
    marks=(_TAG,),
    triggers=(),
    rules=_rules,
    read_calls=_none,
    think=None,
    reads_all=_read_all,
    heads=lambda tools: [_head(tool) for tool in tools],
    trims=False,
)

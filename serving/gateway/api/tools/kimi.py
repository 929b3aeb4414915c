"""Kimi K2: calls between tokens of their own; a call's id contains its name and its number in the conversation.

<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo"}
<|tool_call_end|><|tool_calls_section_end|>
"""

import re
from collections.abc import Sequence

from serving.gateway.api.tools.deepseek import read_arguments, read_section
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN_ALL, _END_ALL = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ID = re.compile(r"functions\.[^:\s]+:\d+")
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _read(reader: Reader) -> Steps[None]:
    yield from read_section(reader, reader.marks[_BEGIN], reader.marks[_END_ALL], _call)


def _call(reader: Reader) -> Steps[None]:
    marks = reader.marks
    ends = marks.chars((_BEGIN, _END, _END_ALL))
    head, stop = yield from reader.collect(marks[_ARGUMENTS] + ends)
    if stop != marks[_ARGUMENTS]:
        return
    reader.take(1)
    own_id = head.strip()
    name, colon, number = own_id.removeprefix("functions.").rpartition(":")
    numbered = bool(colon) and number.isdecimal()
    reader.calls.open(name if numbered else own_id.removeprefix("functions."), own_id if numbered else None)
    yield from read_arguments(reader, ends)


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    arguments = spelling.mark(_ARGUMENTS)
    heads = [f"{quoted(f'functions.{tool.name}:')} NUMBER {arguments} a{i}" for i, tool in enumerate(tools)]
    return [
        f"calls: {spelling.mark(_BEGIN_ALL)} call{further('call', most)} {spelling.mark(_END_ALL)}",
        f"call: {spelling.mark(_BEGIN)} ({either(heads)}) {spelling.mark(_END)}",
        *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)),
        "NUMBER: /[0-9]{1,4} ?/",
    ]


def _history_id(own_id: str, function: str, before: int) -> str:
    return own_id if _ID.fullmatch(own_id) else f"functions.{function}:{before}"


KIMI_K2 = Family(
    name="kimi-k2",
    marks=(_BEGIN_ALL, _END_ALL, _BEGIN, _ARGUMENTS, _END, "<think>", "</think>"),
    triggers=(_BEGIN_ALL,),
    rules=_rules,
    read_calls=_read,
    trims=False,
    history_id=_history_id,
)

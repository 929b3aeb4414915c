"""DeepSeek V3, R1 and V3.1: calls between tokens of their own, in one section.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

V3 and R1 write the name after the separator, after the word `function`, and the arguments as a block of Markdown.
"""

from collections.abc import Sequence
from dataclasses import replace

from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps
from serving.gateway.api.tools.section import read_arguments, read_section

_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_BLOCK, _END_BLOCK = "\n```json\n", "\n```"


def _read(reader: Reader) -> Steps[None]:
    yield from read_section(reader, reader.marks[_BEGIN], reader.marks[_END_ALL], _call)


def _call(reader: Reader) -> Steps[None]:
    marks = reader.marks
    ends = marks.chars((_BEGIN, _END, _END_ALL))
    head, stop = yield from reader.collect(marks[_SEPARATOR] + ends)
    if stop != marks[_SEPARATOR]:
        return
    reader.take(1)
    name = head.strip()
    if name == "function" and (yield from reader.past_space()) != "{":
        line, _ = yield from reader.collect("\n" + ends)
        name = line.strip()
        if (yield from reader.skip_to("{" + ends)) != "{":
            return
    reader.calls.open(name)
    yield from read_arguments(reader, ends)


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """Rules of V3.1."""
    heads = [f"{quoted(tool.name)} {spelling.mark(_SEPARATOR)} a{i}" for i, tool in enumerate(tools)]
    return [
        f"calls: {spelling.mark(_BEGIN_ALL)} call{further('call', most)} {spelling.mark(_END_ALL)}",
        f"call: {spelling.mark(_BEGIN)} ({either(heads)}) {spelling.mark(_END)}",
        *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)),
    ]


def _older_rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """Rules of V3 and R1."""
    heads = [f"{quoted(tool.name + _BLOCK)} a{i}" for i, tool in enumerate(tools)]
    return [
        f"calls: {spelling.mark(_BEGIN_ALL)} call{further('(NL call)', most)} {spelling.mark(_END_ALL)}",
        f'call: {spelling.mark(_BEGIN)} "function" {spelling.mark(_SEPARATOR)} ({either(heads)}) '
        f"{quoted(_END_BLOCK)} {spelling.mark(_END)}",
        r"NL: /\n?/",
        *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)),
    ]


DEEPSEEK_V3 = Family(
    name="deepseek-v3",
    marks=(_BEGIN_ALL, _END_ALL, _BEGIN, _SEPARATOR, _END, "<think>", "</think>"),
    triggers=(_BEGIN_ALL,),
    rules=_older_rules,
    read_calls=_read,
    trims=False,
    argument_objects=False,
)
DEEPSEEK_V31 = replace(DEEPSEEK_V3, name="deepseek-v3.1", rules=_rules)

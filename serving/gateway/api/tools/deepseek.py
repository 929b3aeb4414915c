"""DeepSeek V3, R1 and V3.1: calls between tokens of their own, in one section.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

V3 and R1 write the name after the separator, after the word `function`, and the arguments as a block of Markdown.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from serving.gateway.api.tools.arguments import Arguments, Closing
from serving.gateway.api.tools.call_object import json_value
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import (
    ArgumentForm,
    CallRule,
    Spelling,
    arguments_of,
    call_heads,
    either,
    further,
    quoted,
)
from serving.gateway.api.tools.reader import Reader, Steps

# DeepSeek V3.2 and later: tags that contain a token of their own; strings are raw text, other values JSON.
#
# <｜DSML｜function_calls>
# <｜DSML｜invoke name="weather">
# <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
# </｜DSML｜invoke>
# </｜DSML｜function_calls>

_TOKEN = "｜DSML｜"
_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_ALL = ("function_calls", "tool_calls", "calls")
"""Names of the section, in V3.2 and its successors; some put a space before each word."""


def _dsml_read(reader: Reader) -> Steps[None]:
    """One section. The text before it withholds its `<`."""
    reader.take(1)
    word, stop = yield from reader.collect(">")
    if not stop:
        return
    reader.take(1)
    if word.strip() not in _ALL:
        reader.prose.write(f"<{reader.marks[_TOKEN]}{word}>")
        return
    while (tag := (yield from _tag(reader))) is not None:
        closing, word, attributes = tag
        if closing:
            return
        if word == "invoke":
            yield from _invoke(reader, attributes)


def _invoke(reader: Reader, attributes: str) -> Steps[None]:
    call = Arguments(reader, _attributes(attributes).get("name", ""))
    if attributes.endswith("/"):
        call.end()
        return
    token = reader.marks[_TOKEN]
    behind = tuple(
        f"{begin}{token}{space}{word}" for begin, word in (("<", "parameter"), ("</", "invoke")) for space in ("", " ")
    )
    closings = tuple(Closing(f"</{token}{space}parameter>", behind) for space in ("", " "))
    while (tag := (yield from _tag(reader))) is not None:
        closing, word, attributes = tag
        if closing:
            call.end()
            return
        if word == "parameter":
            own = _attributes(attributes)
            is_string = own.get("string") != "false"
            if not (yield from call.argument(own.get("name", ""), closings, is_string=is_string)):
                return


def _tag(reader: Reader) -> Steps[tuple[bool, str, str] | None]:
    """The next tag: whether it closes, its word, and the rest; None at the end of the output."""
    token = reader.marks[_TOKEN]
    before, stop = yield from reader.collect(token)
    if not stop:
        return None
    reader.take(1)
    text, stop = yield from reader.collect(">")
    if not stop:
        return None
    reader.take(1)
    word, _, rest = text.strip().partition(" ")
    return before.endswith("/"), word.rstrip("/"), rest if not word.endswith("/") else "/"


def _attributes(text: str) -> dict[str, str]:
    return dict(_ATTRIBUTE.findall(text))


def _dsml_rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    token = spelling.mark(_TOKEN)

    def before(name: str, is_string: str) -> str:
        return f'"<" {token} " "? {quoted(f"""parameter name="{name}" string="{is_string}">""")}'

    form = ArgumentForm(
        lambda name: before(name, "true"),
        lambda name: before(name, "false"),
        f'TEXT {token} " "? "parameter>\\n"',
        f'"</" {token} " "? "parameter>\\n"',
    )
    heads, rules = call_heads(tools, form, lambda tool: quoted(f'invoke name="{tool.name}">\n'))
    section = f'{token} " "? ({either([quoted(word) for word in _ALL])})'
    return [
        'calls: "<" calls_behind',
        f'calls_behind: {section} ">\\n" call{further("call", most)} "</" {section} ">"',
        f'call: "<" {token} " "? ({either(heads)}) NL "</" {token} " "? "invoke>\\n"',
        *rules,
        r"TEXT: /(?s:.*)<\//",
        r"NL: /\n?/",
    ]


DSML = Family(
    name="deepseek-v3.2",
    marks=(_TOKEN, "<think>", "</think>"),
    triggers=(_TOKEN,),
    rules=_dsml_rules,
    read_calls=_dsml_read,
    holds="<",
)


# A section of calls between tokens of their own, in DeepSeek and Kimi: BEGIN_ALL (BEGIN call END)* END_ALL.


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


# DeepSeek V3, R1 and V3.1: calls between tokens of their own, in one section.

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

"""GLM 4.5 to 5: a call's name and arguments between tags; strings are raw text, other values JSON.

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

From 4.7 on there are no line breaks.
"""

from collections.abc import Sequence

from serving.gateway.api.tools.arguments import Arguments, Closing
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import ArgumentForm, CallRule, Spelling, call_heads, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def _read(reader: Reader) -> Steps[None]:
    marks = reader.marks
    reader.take(1)
    closings = (
        Closing(marks[_END_VALUE], (marks[_KEY], marks[_END])),
        Closing(marks[_END], (marks[_BEGIN],), stays=True),  # the value's end marker is missing
    )
    name, stop = yield from reader.collect(marks.chars((_KEY, _END)))
    if not stop:
        return
    call = Arguments(reader, name.strip())
    while (yield from reader.past_space()) == marks[_KEY]:
        reader.take(1)
        key, stop = yield from reader.collect(marks.chars((_END_KEY, _END)))
        if stop != marks[_END_KEY]:
            return
        reader.take(1)
        if (yield from reader.past_space()) != marks[_VALUE]:
            return
        reader.take(1)
        if not (yield from call.argument(key.strip(), closings)):
            return
    if reader.buffer.startswith(marks[_END]):
        reader.take(1)
        call.end()


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """Rules with or without line breaks, because models differ."""
    key, value, end = (spelling.mark(name) for name in (_KEY, _VALUE, _END_VALUE))

    def before(name: str) -> str:
        return f"NL {key} {quoted(name)} {spelling.mark(_END_KEY)} NL {value}"

    form = ArgumentForm(before, before, f"TEXT {end}", end)
    heads, rules = call_heads(tools, form, lambda tool: quoted(tool.name))
    return [
        f"calls: call{further('(NL call)', most)}",
        f"call: {spelling.mark(_BEGIN)} ({either(heads)}) NL {spelling.mark(_END)}",
        *rules,
        r"NL: /\n?/",
        "TEXT: /(?s:.*)/",
    ]


GLM = Family(
    name="glm",
    marks=(_BEGIN, _END, _KEY, _END_KEY, _VALUE, _END_VALUE, "<think>", "</think>"),
    triggers=(_BEGIN,),
    rules=_rules,
    read_calls=_read,
)

"""Qwen3-Coder and its successors: a call's name and arguments between tags; strings are raw text, other values JSON.

<tool_call>
<function=weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
"""

from collections.abc import Sequence

from serving.gateway.api.tools.arguments import Arguments, Closing
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import ArgumentForm, CallRule, Spelling, call_heads, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


def _read(reader: Reader) -> Steps[None]:
    marks = reader.marks
    bare = not reader.buffer.startswith(marks[_BEGIN])
    if not bare:
        reader.take(1)
        yield from reader.past_space()
    if not (yield from reader.accept(_FUNCTION, marks[_FUNCTION])):
        return
    name, stop = yield from reader.collect(">")
    if not stop:
        return
    reader.take(1)
    if not (yield from _function(reader, name.strip())):
        return
    if (yield from reader.past_space()) == marks[_END]:
        reader.take(1)


def _function(reader: Reader, name: str) -> Steps[bool]:
    """Read the arguments. Returns: whether they are complete."""
    marks = reader.marks
    behind = (_PARAMETER, _END_FUNCTION, marks[_END])
    closings = (
        Closing("\n" + _END_PARAMETER, behind),
        Closing(_END_PARAMETER, behind),
        Closing("\n" + _PARAMETER, ("",), stays=True),  # the argument's end tag is missing
        Closing("\n" + _END_FUNCTION, (marks[_END],), stays=True),
    )
    call = Arguments(reader, name)
    while True:
        yield from reader.past_space()
        word = yield from reader.accept(_PARAMETER, _END_FUNCTION, marks[_END])
        if word != _PARAMETER:
            if word:
                call.end()
            return word == _END_FUNCTION
        key, stop = yield from reader.collect(">")
        if not stop:
            return False
        reader.take(1)
        yield from reader.accept("\n")
        if not (yield from call.argument(key.strip(), closings)):
            return False


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    def before(name: str) -> str:
        return quoted(f"{_PARAMETER}{name}>\n")

    form = ArgumentForm(before, before, "text", quoted(f"\n{_END_PARAMETER}\n"))
    heads, rules = call_heads(tools, form, lambda tool: quoted(f"\n{_FUNCTION}{tool.name}>\n"))
    return [
        "calls: call" + further('("\\n" call)', most),
        f"call: {spelling.mark(_BEGIN)} ({either(heads)}) {quoted(_END_FUNCTION + chr(10))} {spelling.mark(_END)}",
        *rules,
        r"text[lazy]: /(?s:.*)\n<\/parameter>\n/",
    ]


QWEN_CODER = Family(
    name="qwen-coder",
    marks=(_BEGIN, _END, _FUNCTION, "<think>", "</think>"),
    triggers=(_BEGIN, _FUNCTION),
    rules=_rules,
    read_calls=_read,
    calls_in_thought=_FUNCTION,
)

"""Hermes' form of calls, as Qwen 2.5 and Qwen 3 write them: one JSON object between two tags.

<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

import json
from collections.abc import Sequence

from serving.gateway.api.tools.call_object import CallObject, CallOutcome
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, further, quoted
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(reader: Reader) -> Steps[None]:
    """Read one call. Text that is not an object stays text."""
    begin = reader.take(1)
    if not (yield from reader.past_space()):
        return
    call = CallObject(reader)
    outcome = yield from call.read()
    if outcome is CallOutcome.CALL:
        end = reader.marks[_END]
        if (yield from reader.past_space()) == end:
            reader.take(1)
        return
    if not reader.ended:
        reader.prose.write(begin + call.raw)


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    heads = [f"{quoted(_head(tool))} a{i}" for i, tool in enumerate(tools)]
    return [
        f"calls: call{further('(NL call)', most)}",
        f'call: {spelling.mark(_BEGIN)} NL ({either(heads)}) "}}" NL {spelling.mark(_END)}',
        *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)),
        r"NL: /\n?/",
    ]


def _head(tool: CallRule) -> str:
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '


HERMES = Family(
    name="hermes",
    marks=(_BEGIN, _END, "<think>", "</think>"),
    triggers=(_BEGIN,),
    rules=_rules,
    read_calls=_read,
)

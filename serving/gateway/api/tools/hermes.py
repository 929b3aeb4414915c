"""Hermes' form of calls, as Qwen 2.5 and Qwen 3 write them: one JSON object between two tags.

<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

from serving.gateway.api.tools.call_object import CallObject, CallOutcome
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.reader import Reader, Steps

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(reader: Reader) -> Steps[None]:
    """One call. What is no object is text, as it was written."""
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


HERMES = Family(
    name="hermes",
    marks=(_BEGIN, _END, "<think>", "</think>"),
    triggers=(_BEGIN,),
    read_calls=_read,
)

"""Harmony, the form of gpt-oss: a turn is messages on channels, each with a header.

    <|channel|>analysis<|message|>They want the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

The channel `analysis` is reasoning, `final` the answer, `commentary` a call or a word before one.
"""

import re

from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.json_text import json_value
from serving.gateway.api.tools.reader import Reader, Steps

_START, _END, _MESSAGE, _CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
_CONSTRAIN, _CALL, _RETURN = "<|constrain|>", "<|call|>", "<|return|>"
_RECIPIENT = re.compile(r"\bto=(\S+)")
_WORD = re.compile(r"\w+")
_FUNCTIONS = "functions."


def _read_all(reader: Reader) -> Steps[None]:
    marks = reader.marks
    while True:
        header, stop = yield from reader.collect(marks.chars((_MESSAGE, _START, _END)))
        if not stop:
            break
        reader.take(1)
        if stop == marks[_MESSAGE]:
            yield from _message(reader, header)
    reader.thought.flush()
    reader.prose.flush()


def _message(reader: Reader, header: str) -> Steps[None]:
    """One message, whose header is read."""
    marks = reader.marks
    ends = marks.chars((_END, _CALL, _RETURN, _START))
    channel = _WORD.match(header.rpartition(marks[_CHANNEL])[2].strip())
    plain = header.translate(dict.fromkeys(map(ord, marks.all), " "))
    recipient = _RECIPIENT.search(plain)
    if recipient is not None and recipient[1] != "assistant":
        name = recipient[1]
        if name.startswith(_FUNCTIONS) and reader.tools:
            reader.calls.open(name.removeprefix(_FUNCTIONS))
            if (yield from reader.past_space()) == "{":
                yield from json_value(reader, reader.calls.write)
            elif reader.buffer:
                reader.calls.write("{}")
        yield from reader.skip_to(ends)
        reader.calls.close()
    elif channel is not None and channel[0] == "analysis":
        yield from reader.copy_to(ends, reader.thought.write)
    elif channel is not None and channel[0] in ("final", "commentary"):
        yield from reader.copy_to(ends, reader.prose.write)
    else:
        yield from reader.skip_to(ends)
    if reader.buffer and not reader.buffer.startswith(marks[_START]):
        reader.take(1)


def _none(reader: Reader) -> Steps[None]:
    yield from reader.front()


HARMONY = Family(
    name="harmony",
    marks=(_START, _END, _MESSAGE, _CHANNEL, _CONSTRAIN, _CALL, _RETURN),
    triggers=(),
    read_calls=_none,
    think=None,
    reads_all=_read_all,
    trims=False,
    argument_objects=False,
)

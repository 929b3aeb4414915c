"""Harmony, the form of gpt-oss: a turn is messages on channels, each with a header.

    <|channel|>analysis<|message|>They want the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

The channel `analysis` is reasoning, `final` the answer, `commentary` a call or text before it.
"""

import re
from collections.abc import Sequence

from serving.gateway.api.tools.call_object import json_value
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, arguments_of, either, quoted
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
    """Read one message, whose header has been read."""
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
        reader.thinking = True
        yield from reader.copy_to(ends, reader.thought.write)
        reader.thinking = False
    elif channel is not None and channel[0] in ("final", "commentary"):
        yield from reader.copy_to(ends, reader.prose.write)
    else:
        yield from reader.skip_to(ends)
    if reader.buffer and not reader.buffer.startswith(marks[_START]):
        reader.take(1)


def _frame(spelling: Spelling, calls: str | None, answer: str | None, forced: bool, budget: int | None) -> list[str]:
    """Reasoning and text before a call, each a message, then a call or the answer."""
    channel, message, end = (spelling.mark(name) for name in (_CHANNEL, _MESSAGE, _END))
    turn = f'{end} {spelling.mark(_START)} "assistant"'
    free = f"{spelling.all_but(_END, _START, _CHANNEL, _MESSAGE)}*"
    final = f'{channel} "final" (" "? {spelling.mark(_CONSTRAIN)} "json")? {message} {answer or free}'
    thought = f"thought[max_tokens={budget}]: /(?s:.*)/" if budget else 'thought: ""'
    if budget is None:
        thought = f"thought: {free}"
    last = [*([calls] if calls else []), *([] if forced else [final])]
    words = f'({channel} "commentary" {message} {free} {turn})* ' if calls and answer is None else ""
    times = "*" if budget is None else "?"  # a budget applies to one message, so several would exceed it
    return [
        f'start: ({channel} "analysis" {message} thought {turn}){times} {words}({either(last)})',
        thought,
    ]


def _none(reader: Reader) -> Steps[None]:
    yield from reader.front()


def _rules(spelling: Spelling, tools: Sequence[CallRule], most: int | None) -> list[str]:
    """One call, after the word `assistant`; the marker after it ends the turn."""
    channel, constrain, message = (spelling.mark(name) for name in (_CHANNEL, _CONSTRAIN, _MESSAGE))
    names = [f"{quoted(f'{_FUNCTIONS}{tool.name}')}" for tool in tools]
    in_channel = [f'{channel} "commentary to=" {name} kind {message} a{i}' for i, name in enumerate(names)]
    in_role = [f'" to=" {name} {channel} "commentary" kind {message} a{i}' for i, name in enumerate(names)]
    return [
        f"calls: {either([*in_channel, *in_role])}",
        f'kind: (" "? {constrain} "json" | " json")?',
        *(f"a{i}: {arguments_of(tool)}" for i, tool in enumerate(tools)),
    ]


HARMONY = Family(
    name="harmony",
    marks=(_START, _END, _MESSAGE, _CHANNEL, _CONSTRAIN, _CALL, _RETURN),
    triggers=(),
    rules=_rules,
    read_calls=_none,
    think=None,
    reads_all=_read_all,
    frame=_frame,
    trims=False,
)

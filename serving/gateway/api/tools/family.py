"""A family: how models of one kind write reasoning and calls; and the parser that reads an output of theirs."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from serving.gateway.api.parts import Part
from serving.gateway.api.tools.lark import CallRule, Spelling
from serving.gateway.api.tools.marks import TextMarks, ToolMarks
from serving.gateway.api.tools.reader import Reader, Schemas, Steps
from serving.gateway.api.tools.sinks import NewId, call_id

Rules = Callable[[Spelling, Sequence[CallRule], int | None], list[str]]
"""Rules of a grammar, `calls` among them, from a vocabulary, the tools that may be called, and how many calls may come.

None = any number."""

_AS_JSON = re.compile(r"arguments['\"]?\]?\s*\|\s*tojson")
HistoryId = Callable[[str, str, int], str]
Frame = Callable[[Spelling, str | None, str | None, bool, int | None], list[str]]


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Args:
        name: as the configuration calls it.
        marks: texts of all markers, reasoning's among them.
        triggers: markers with which calls begin.
        rules: grammar of one or more calls, from the trigger on.
        read_calls: reads from a trigger, which is in front of the buffer, to behind the last call that belongs to it.
        think: markers around reasoning; None = there is none.
        frame: for a family whose text has a form of its own: the rule `start` and what it needs, from the names of the
            rules of calls and of the answer, whether a call must come, and most tokens of reasoning.
        heads: for a family without triggers: how its calls begin.
        reads_all: in place of all this: reads the output from its first character.
        calls_in_thought: a trigger ends reasoning, if this comes behind it.
        trims: white space around calls and reasoning is the template's.
        holds: a text that belongs to the marker behind it.
        argument_objects: whether the template wants arguments as objects, not as JSON text.
        new_id: names calls that the model does not name.
        history_id: the name of an earlier call in the form that the templates need, from the name that it has, its
            function, and how many calls came before it; None = templates take any.
    """

    name: str
    marks: tuple[str, ...]
    triggers: tuple[str, ...]
    rules: Rules
    read_calls: Callable[[Reader], Steps[None]]
    think: tuple[str, str] | None = ("<think>", "</think>")
    reads_all: Callable[[Reader], Steps[None]] | None = None
    frame: Frame | None = None
    heads: Callable[[Sequence[CallRule]], list[str]] = lambda tools: []
    calls_in_thought: str | None = None
    trims: bool = True
    holds: str = ""
    argument_objects: bool = True
    new_id: NewId = field(default=call_id)
    history_id: HistoryId | None = None

    def wants_objects(self, template: str) -> bool:
        """Whether this template takes a call's arguments as an object."""
        return self.argument_objects or _AS_JSON.search(template) is not None

    def marks_of(self, tokens: Mapping[str, int]) -> ToolMarks:
        """The markers over a vocabulary.

        Args:
            tokens: ids of the vocabulary's added tokens.
        """
        return ToolMarks(self.marks, {name: tokens[name] for name in self.marks if name in tokens})


class OutputParser:
    """Reads one output, in pieces, into parts.

    Args:
        tools: on offer; where there are none, calls are text.
        opened: the prompt has opened the reasoning already.
        customs: tools among them that are called with a text.
        calls_only: what is neither reasoning nor a call is the beginning of one that was cut off: not shown.
    """

    def __init__(
        self,
        family: Family,
        marks: ToolMarks,
        tools: Schemas,
        *,
        customs: Collection[str] = (),
        opened: bool = False,
        calls_only: bool = False,
    ) -> None:
        self._calls_only = calls_only
        self.of_token = marks.of_token
        """Markers that are tokens: their ids."""
        self._in_text = TextMarks(marks)
        reader = Reader(marks, tools, family.new_id, trims=family.trims, holds=family.holds, customs=customs)
        self._reader = reader
        steps = family.reads_all(reader) if family.reads_all else _read(family, reader, opened=opened)
        self._steps = steps
        self._done = False
        self._go_on()

    @property
    def calls(self) -> int:
        """Calls that have shown."""
        return self._reader.calls.count

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._reader.thinking

    def text(self, piece: str) -> list[Part]:
        """Take some text. Returns: what became visible."""
        return self._push(self._in_text.push(piece))

    def token(self, token: int) -> list[Part]:
        """Take a marker that is a token."""
        return self._push(self._in_text.flush() + self.of_token[token])

    def end(self) -> list[Part]:
        """No more comes. Returns: what was held back."""
        self._reader.buffer += self._in_text.flush()
        self._reader.ended = True
        self._go_on()
        return self._visible()

    def _push(self, coded: str) -> list[Part]:
        if coded:
            self._reader.buffer += coded
            self._go_on()
        return self._visible()

    def _go_on(self) -> None:
        if not self._done:
            self._done = next(self._steps, self) is self

    def _visible(self) -> list[Part]:
        parts = self._reader.parts
        visible = [part for part in parts if not (self._calls_only and isinstance(part, str))]
        parts.clear()
        return visible


def _read(family: Family, reader: Reader, *, opened: bool) -> Steps[None]:
    """Reasoning, text and calls, in any order, to the end."""
    marks = reader.marks
    triggers = marks.chars(family.triggers) if reader.tools else ""
    think, unthink = (marks[name] for name in family.think) if family.think else ("", "")
    if opened:
        yield from _reason(family, reader, triggers, unthink)
    elif think:
        yield from _blank_before(reader, think)
    while stop := (yield from reader.copy_to(triggers + think + unthink, reader.prose.write)):
        if stop in triggers:
            reader.prose.cut()
            yield from family.read_calls(reader)
            reader.calls.close()
            continue
        reader.take(1)
        if stop == think:
            reader.prose.cut()
            yield from _reason(family, reader, triggers, unthink)
    if reader.calls.count and family.trims:
        reader.prose.cut()
    reader.prose.flush()


def _blank_before(reader: Reader, think: str) -> Steps[None]:
    """White space before reasoning is no text; any other is."""
    space = []
    while (front := (yield from reader.front())).isspace():
        space.append(reader.take(1))
    if front != think:
        reader.prose.write("".join(space))


def _reason(family: Family, reader: Reader, triggers: str, unthink: str) -> Steps[None]:
    """Reasoning up to behind its end."""
    marks = reader.marks
    reader.thinking = True
    stops = unthink + (triggers if family.calls_in_thought is not None else "")
    while stop := (yield from reader.copy_to(stops, reader.thought.write)):
        if stop == unthink:
            reader.take(1)
            break
        if (yield from _call_follows(reader, marks.coded(family.calls_in_thought or ""))):
            break
        reader.thought.write(reader.take(1))
    reader.thinking = False
    if not stop:
        reader.thought.flush()
        return
    reader.thought.cut()
    reader.prose.skip_space()


def _call_follows(reader: Reader, text: str) -> Steps[bool]:
    """Whether this text comes behind the character in front, after white space."""
    while True:
        behind = reader.buffer[1:].lstrip()
        if behind.startswith(text):
            return True
        if not text.startswith(behind) or not (yield from reader.more()):
            return False

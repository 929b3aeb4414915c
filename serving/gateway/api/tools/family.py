"""A family: the form of reasoning and calls in one kind of models; and the parser of its outputs."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from serving.gateway.api.tools.lark import CallRule, Spelling
from serving.gateway.api.tools.marks import TextMarks, ToolMarks
from serving.gateway.api.tools.reader import NewId, Part, Reader, Schemas, Steps, call_id

Rules = Callable[[Spelling, Sequence[CallRule], int | None], list[str]]
"""Rules of a grammar, including `calls`, from a vocabulary, the callable tools, and the most calls (None = any
number)."""

_AS_JSON = re.compile(r"arguments['\"]?\]?\s*\|\s*tojson")
HistoryId = Callable[[str, str, int], str]
Frame = Callable[[Spelling, str | None, str | None, bool, int | None], list[str]]


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Args:
        name: name in the configuration.
        marks: texts of all markers, including those of reasoning.
        triggers: markers that start calls.
        rules: grammar of one or more calls, from the trigger on.
        read_calls: reads from a trigger, the first character of the buffer, to the end of the last call it starts.
        think: markers around reasoning; None = the family has none.
        frame: for a family whose text has a structure of its own: the rule `start` and the rules it needs, from the
            names of the rules of calls and of the answer, whether a call is required, and the most reasoning tokens.
        heads: for a family without triggers: texts that start its calls.
        reads_all: reads the output from its first character, instead of `triggers`, `think` and `read_calls`.
        calls_in_thought: text after a trigger with which the trigger also ends reasoning.
        trims: whether white space around calls and reasoning belongs to the template.
        holds: text that belongs to the marker after it.
        argument_objects: whether the template expects arguments as objects, not as JSON text.
        new_id: creates the id of a call to which the model gives none.
        history_id: id of an earlier call in the form that the templates expect, from its present id, its function, and
            the number of calls before it; None = templates accept any.
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
        """Whether this template expects a call's arguments as an object."""
        return self.argument_objects or _AS_JSON.search(template) is not None

    def marks_of(self, tokens: Mapping[str, int]) -> ToolMarks:
        """The markers in a vocabulary.

        Args:
            tokens: ids of the vocabulary's added tokens.
        """
        return ToolMarks(self.marks, {name: tokens[name] for name in self.marks if name in tokens})


class OutputParser:
    """Parses one output, in pieces, into parts.

    Args:
        tools: offered tools; without any, calls are text.
        opened: the prompt has already opened reasoning.
        customs: names of the tools that are called with a text.
        calls_only: text that is neither reasoning nor a call is an incomplete call, which is not shown.
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
        """Character of each marker that is a token, by its id."""
        self._in_text = TextMarks(marks)
        reader = Reader(marks, tools, family.new_id, trims=family.trims, holds=family.holds, customs=customs)
        self._reader = reader
        steps = family.reads_all(reader) if family.reads_all else _read(family, reader, opened=opened)
        self._steps = steps
        self._done = False
        self._go_on()

    @property
    def calls(self) -> int:
        """Number of calls output so far."""
        return self._reader.calls.count

    @property
    def called(self) -> Collection[str]:
        """Names of the tools called so far."""
        return self._reader.calls.names

    @property
    def thinking(self) -> bool:
        """Whether the next part is reasoning."""
        return self._reader.thinking

    def text(self, piece: str) -> list[Part]:
        """Add text. Returns: the parts that became visible."""
        return self._push(self._in_text.push(piece))

    def token(self, token: int) -> list[Part]:
        """Add a marker that is a token."""
        return self._push(self._in_text.flush() + self.of_token[token])

    def end(self) -> list[Part]:
        """Finish the output. Returns: the withheld parts."""
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
    """Read reasoning, text and calls, in any order, to the end."""
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
    """Skip white space before reasoning; any other text is kept."""
    space = []
    while (front := (yield from reader.front())).isspace():
        space.append(reader.take(1))
    if front != think:
        reader.prose.write("".join(space))


def _reason(family: Family, reader: Reader, triggers: str, unthink: str) -> Steps[None]:
    """Read reasoning, including its end marker."""
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
    """Whether this text follows the first character of the buffer, after white space."""
    while True:
        behind = reader.buffer[1:].lstrip()
        if behind.startswith(text):
            return True
        if not text.startswith(behind) or not (yield from reader.more()):
            return False

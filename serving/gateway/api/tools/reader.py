"""State of the parser of one output, and the steps that families' parsers consist of.

A family's parser is a generator that consumes text from the buffer, adds parts to sinks and yields when it needs more
text. It is written as if the whole output were available, and its result does not depend on how the output is cut:
a lookahead waits until there is enough text, or the output has ended.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from serving.gateway.api.tools.custom_tools import InputText
from serving.gateway.api.tools.marks import ToolMarks

# Parts of a choice's output, in the order in which the model generates them.
#
# Text is a plain `str`, so that a streamed token of text costs no object of its own.


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call.

    Args:
        index: of the call within the choice.
        id, name: of the call; with its first piece only.
        arguments: the next piece of their JSON text, or of a custom tool's input.
        custom: whether the tool is called with a text.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    custom: bool = False


Part = str | ReasoningPart | CallPart


# Sinks of a parser: text, reasoning and calls, as parts of the output.

NewId = Callable[[], str]


def call_id() -> str:
    """A new call id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"


class Prose:
    """Sink of text, for the answer or for reasoning.

    Args:
        trims: whether white space before a call, after reasoning and around it belongs to the template.
        holds: further characters that may belong to a marker that starts with the next token.
    """

    def __init__(
        self, parts: list[Part], marks: ToolMarks, *, trims: bool, holds: str = "", thought: bool = False
    ) -> None:
        self._parts = parts
        self._marks = marks
        self._trims = trims
        self._holds = holds
        self._thought = thought
        self._held = ""
        self._skipping = thought and trims

    def write(self, text: str) -> None:
        """Add text."""
        text = self._held + text
        if self._skipping:
            text = text.lstrip()
            self._skipping = not text
        core = text
        if self._holds and core.endswith(self._holds):
            core = core[: -len(self._holds)]
        if self._trims:
            core = core.rstrip()
        self._held = text[len(core) :]
        self._out(core)

    def skip_space(self) -> None:
        """Drop white space that follows."""
        self._skipping = self._trims

    def cut(self) -> None:
        """Drop the withheld text, because a call starts or reasoning ends."""
        self._held = ""

    def flush(self) -> None:
        """Output the withheld text, at the end of the output."""
        held, self._held = self._held, ""
        self._out(held)

    def _out(self, text: str) -> None:
        if text:
            text = self._marks.spelled(text)
            self._parts.append(ReasoningPart(text) if self._thought else text)


class Calls:
    """Sink of calls. A call becomes visible with the first piece of its arguments.

    Args:
        customs: names of the tools that are called with a text.
    """

    def __init__(self, parts: list[Part], marks: ToolMarks, new_id: NewId, customs: Collection[str] = ()) -> None:
        self._parts = parts
        self._marks = marks
        self._new_id = new_id
        self._next: tuple[str, str | None] | None = None
        self._customs = customs
        self._text: InputText | None = None
        """Input of the open call, if it calls a custom tool."""
        self._open = False
        self.count = 0
        self.names: dict[str, None] = {}
        """Names of the called tools, each once."""

    def open(self, name: str, own_id: str | None = None) -> None:
        """Start a call of this name; `own_id` is the model's id, if any."""
        self.close()
        self._next = self._marks.spelled(name), own_id

    def write(self, text: str) -> None:
        """Add text of the arguments' JSON."""
        if self._next is not None:
            name, own_id = self._next
            self._next = None
            self._open = True
            custom = name in self._customs
            self._text = InputText() if custom else None
            self._parts.append(CallPart(self.count, id=own_id or self._new_id(), name=name, custom=custom))
            self.count += 1
            self.names[name] = None
        if text and self._open:
            self._piece(self._marks.spelled(text) if self._text is None else self._text.push(self._marks.spelled(text)))

    def write_string(self, text: str) -> None:
        """Add text of a string among the arguments."""
        self.write(json.dumps(self._marks.spelled(text), ensure_ascii=False)[1:-1])

    def close(self) -> None:
        """Finish the call, complete or not."""
        if self._open and self._text is not None:
            self._piece(self._text.end())
        self._next = None
        self._open = False

    def _piece(self, text: str) -> None:
        if text:
            self._parts.append(CallPart(self.count - 1, text, custom=self._text is not None))


# State of the parser of one output, and the steps that families' parsers consist of.

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields when more of the output is needed."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Parameters of each offered tool, by its name."""
Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Reader:
    """One output.

    Args:
        tools: offered tools; without any, calls are not parsed.
        customs: names of the tools that are called with a text.
        trims, holds: see `Prose`.
    """

    def __init__(
        self,
        marks: ToolMarks,
        tools: Schemas,
        new_id: NewId,
        *,
        trims: bool,
        holds: str = "",
        customs: Collection[str] = (),
    ) -> None:
        self.marks = marks
        self.tools = tools
        self.buffer = ""
        self.ended = False
        self.thinking = False
        """Whether the current text is reasoning."""
        self.parts: list[Part] = []
        self.prose = Prose(self.parts, marks, trims=trims, holds=holds)
        self.thought = Prose(self.parts, marks, trims=trims, holds=holds, thought=True)
        self.calls = Calls(self.parts, marks, new_id, customs)

    def more(self) -> Steps[bool]:
        """Wait for more of the output; False at its end."""
        if self.ended:
            return False
        before = len(self.buffer)
        while len(self.buffer) == before and not self.ended:
            yield
        return len(self.buffer) > before

    def take(self, size: int) -> str:
        """Consume characters from the front."""
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def front(self) -> Steps[str]:
        """The next character, not consumed; empty at the end."""
        if not self.buffer:
            yield from self.more()
        return self.buffer[:1]

    def past_space(self) -> Steps[str]:
        """Skip white space. Returns: the next character, not consumed; empty at the end."""
        while True:
            found = _SPACE.match(self.buffer)
            assert found is not None, "nothing matches, too"
            self.buffer = self.buffer[found.end() :]
            if self.buffer or not (yield from self.more()):
                return self.buffer[:1]

    def copy_to(self, stops: str, emit: Emit) -> Steps[str]:
        """Emit text up to one of some characters, not consumed. Returns: that character; empty at the end."""
        while True:
            at = min((i for i in map(self.buffer.find, stops) if i >= 0), default=-1)
            if at >= 0:
                emit(self.take(at))
                return self.buffer[0]
            emit(self.take(len(self.buffer)))
            if not (yield from self.more()):
                return ""

    def collect(self, stops: str) -> Steps[tuple[str, str]]:
        """Text up to one of some characters, not consumed, and that character; empty at the end."""
        pieces: list[str] = []
        stop = yield from self.copy_to(stops, pieces.append)
        return "".join(pieces), stop

    def skip_to(self, stops: str) -> Steps[str]:
        """Skip text up to one of some characters, which is not consumed."""
        return (yield from self.copy_to(stops, lambda _: None))

    def accept(self, *words: str) -> Steps[str]:
        """Consume one of some words if the output continues with it. Returns: the word; empty if there is no match."""
        while True:
            found = next((word for word in words if self.buffer.startswith(word)), "")
            may_come = any(len(word) > len(self.buffer) and word.startswith(self.buffer) for word in words)
            if found and not may_come:
                self.take(len(found))
                return found
            if not may_come or not (yield from self.more()):
                if found:
                    self.take(len(found))
                return found

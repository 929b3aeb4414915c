"""State of the parser of one output, and the steps that families' parsers consist of.

A family's parser is a generator that consumes text from the buffer, adds parts to sinks and yields when it needs more
text. It is written as if the whole output were available, and its result does not depend on how the output is cut:
a lookahead waits until there is enough text, or the output has ended.
"""

import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

from serving.gateway.api.parts import Part
from serving.gateway.api.tools.marks import ToolMarks
from serving.gateway.api.tools.sinks import Calls, NewId, Prose

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
        """What is read is reasoning."""
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

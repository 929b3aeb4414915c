"""The state of one output that is read, and the steps that families' readers are made of.

A family's reader is a generator that takes text from the buffer, puts parts into sinks and yields when it needs more.
So it is written as if the whole output lay there, and reads the same however that is cut: whatever looks ahead waits
until enough is there, or the output has ended.
"""

import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

from serving.gateway.api.parts import Part
from serving.gateway.api.tools.marks import ToolMarks
from serving.gateway.api.tools.sinks import Calls, NewId, Prose

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields where more of the output is needed."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Parameters of each tool on offer, by its name."""
Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Reader:
    """One output.

    Args:
        tools: on offer; where there are none, no call is read.
        customs: those among them that are called with a text.
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
        """Wait for more of the output; False when there is none."""
        if self.ended:
            return False
        before = len(self.buffer)
        while len(self.buffer) == before and not self.ended:
            yield
        return len(self.buffer) > before

    def take(self, size: int) -> str:
        """Characters from the front."""
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def front(self) -> Steps[str]:
        """The next character, which stays; empty at the end."""
        if not self.buffer:
            yield from self.more()
        return self.buffer[:1]

    def past_space(self) -> Steps[str]:
        """Leave out white space. Returns: the next character, which stays; empty at the end."""
        while True:
            found = _SPACE.match(self.buffer)
            assert found is not None, "nothing matches, too"
            self.buffer = self.buffer[found.end() :]
            if self.buffer or not (yield from self.more()):
                return self.buffer[:1]

    def copy_to(self, stops: str, emit: Emit) -> Steps[str]:
        """Text up to one of some characters, which stays. Returns: that character; empty at the end."""
        while True:
            at = min((i for i in map(self.buffer.find, stops) if i >= 0), default=-1)
            if at >= 0:
                emit(self.take(at))
                return self.buffer[0]
            emit(self.take(len(self.buffer)))
            if not (yield from self.more()):
                return ""

    def collect(self, stops: str) -> Steps[tuple[str, str]]:
        """Text up to one of some characters, which stays, and that character; empty at the end."""
        pieces: list[str] = []
        stop = yield from self.copy_to(stops, pieces.append)
        return "".join(pieces), stop

    def skip_to(self, stops: str) -> Steps[str]:
        """Leave out text up to one of some characters, which stays."""
        return (yield from self.copy_to(stops, lambda _: None))

    def accept(self, *words: str) -> Steps[str]:
        """Take one of some words if the output goes on with it. Returns: the word; empty if with none."""
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

"""Sinks of a parser: text, reasoning and calls, as parts of the output."""

import json
import secrets
from collections.abc import Callable, Collection

from serving.gateway.api.custom_tools import InputText
from serving.gateway.api.parts import CallPart, Part, ReasoningPart
from serving.gateway.api.tools.marks import ToolMarks

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
        """Of the open call, where it is one of a custom tool."""
        self._open = False
        self.count = 0

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

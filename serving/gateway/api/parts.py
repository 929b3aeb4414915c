"""Parts of a choice's output, in the order in which the model generates them.

Text is a plain `str`, so that a streamed token of text costs no object of its own.
"""

from dataclasses import dataclass


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

"""An output's parts, assembled like a client does."""

from collections.abc import Iterable
from dataclasses import dataclass

from serving.gateway.api.tools.reader import Part, ReasoningPart

Parsed = tuple[str | None, str | None, tuple[tuple[str, str], ...]]
"""Content, reasoning, and each call's name and arguments."""


@dataclass
class _Call:
    name: str
    arguments: str = ""


def put_together(parts: Iterable[Part]) -> Parsed:
    """The whole output; asserts that each call starts with id and name, and that its pieces are in order."""
    content, thought, calls = "", "", list[_Call]()
    for part in parts:
        if isinstance(part, str):
            assert part, "no empty text"
            content += part
        elif isinstance(part, ReasoningPart):
            thought += part.text
        elif part.name is not None:
            assert part.id
            assert (part.index, part.arguments) == (len(calls), "")
            calls.append(_Call(part.name))
        else:
            assert (part.index, part.id) == (len(calls) - 1, None)
            calls[part.index].arguments += part.arguments
    return content or None, thought or None, tuple((call.name, call.arguments) for call in calls)

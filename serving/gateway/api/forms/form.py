"""The protocol of wire forms: converts visible output to the bytes of a response.

    run ──(index, Visible)──► events(...).batch ──► bytes of a stream
                         └──► whole(...).add ... body ──► bytes of one object

A `Visible` has parts (text, reasoning, calls); each form encodes them in its own way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.gateway.api.choice import ChoiceOutput, Visible
from serving.gateway.api.errors import ErrorReply
from serving.gateway.api.timing import Timing
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.translate import GenerationOrder


@dataclass(frozen=True, slots=True)
class Answering:
    """The request that an encoder responds to, and its choices.

    Args:
        timing: times to report to the client; None = none.
    """

    order: GenerationOrder
    choices: Sequence[ChoiceOutput]
    tokenizer: Tokenizer
    timing: Timing | None = None


class EventEncoder(Protocol):
    """Server-sent events of one streamed response."""

    comments: bool
    """Whether `silence` is a comment, not an event: it does not start a stream."""

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty if there is no visible output."""
        ...

    def silence(self) -> bytes:
        """Bytes that keep an idle stream alive."""
        ...

    def closing(self, told: Mapping[str, Any]) -> bytes:
        """The last events of a complete stream.

        Args:
            told: further keys next to the usage.
        """
        ...

    def failure(self, reply: ErrorReply) -> bytes:
        """The last events of a stream that failed after its first."""
        ...


class WholeEncoder(Protocol):
    """The only object in the response to a request without `stream`."""

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        ...

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        ...

    def body(self, told: Mapping[str, Any]) -> bytes:
        """The body, after every choice has finished.

        Args:
            told: further keys.
        """
        ...


@dataclass(frozen=True, slots=True)
class WireForm:
    """One wire form."""

    events: Callable[[Answering], EventEncoder]
    whole: Callable[[Answering], WholeEncoder]


def event(payload: bytes) -> bytes:
    """One event around a JSON text."""
    return b"data: " + payload + b"\n\n"

"""The protocol of wire forms: what became visible goes in, bytes of an answer come out.

    run ──(index, Visible)──► events(...).batch ──► bytes of a stream
                         └──► whole(...).add ... body ──► bytes of one object

A `Visible` carries parts (text, reasoning, calls); each form shows them in its own way.
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
    """The request that an encoder answers, and its choices.

    Args:
        timing: times to tell the client; None = none.
    """

    order: GenerationOrder
    choices: Sequence[ChoiceOutput]
    tokenizer: Tokenizer
    timing: Timing | None = None


class EventEncoder(Protocol):
    """Server-sent events of one streamed answer."""

    comments: bool
    """`silence` is a comment, not an event: it does not start a stream."""

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty when nothing became visible."""
        ...

    def silence(self) -> bytes:
        """Bytes that keep an idle stream alive."""
        ...

    def closing(self, told: Mapping[str, Any]) -> bytes:
        """The last events of a whole stream.

        Args:
            told: further keys beside the usage.
        """
        ...

    def failure(self, reply: ErrorReply) -> bytes:
        """The last events of a stream that failed after its first."""
        ...


class WholeEncoder(Protocol):
    """The one object that answers a request without `stream`."""

    @property
    def short(self) -> bool:
        """Whether the body is made in no time."""
        ...

    def add(self, index: int, out: Visible) -> None:
        """Take what one update made visible."""
        ...

    def body(self, told: Mapping[str, Any]) -> bytes:
        """The body, when every choice is finished.

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

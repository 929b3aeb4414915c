"""What goes into an engine loop, and what comes out: commands and news."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.engine.engine import InstanceEngine
from serving.engine.events import (
    AdoptedEvent,
    FailedEvent,
    HandoffClosedEvent,
    HandoffFailedEvent,
    HandoffReadyEvent,
    LeavingEvent,
    TokensEvent,
)
from serving.errors import ServingError
from serving.ids import SequenceId
from serving.policy.request import HandoffTicket

Command = Callable[[InstanceEngine, float], None]


class Post(Protocol):
    """Gives an engine a command; see `EngineLoop.post`."""

    def __call__(self, command: Command, *, quiet: bool = False) -> None:
        """Callable from any thread; returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class TicketReady:
    """A held sequence's blocks are registered; whoever owns the sequence may have it adopted."""

    ready: HandoffReadyEvent
    ticket: HandoffTicket

    @property
    def sequence_id(self) -> SequenceId:
        """The sequence."""
        return self.ready.sequence_id


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine would not take a sequence."""

    sequence_id: SequenceId
    error: ServingError


News = (
    TokensEvent
    | HandoffClosedEvent
    | AdoptedEvent
    | HandoffFailedEvent
    | FailedEvent
    | LeavingEvent
    | TicketReady
    | Refusal
)

"""Events of sequences, from an engine over an instance's link to a gateway's journal.

Positions count output tokens from the start of the sequence, resumed output included, so that a receiver can drop
duplicates and detect gaps. Times are in the sender's clock, except where a link has converted them.
"""

from enum import Enum

import msgspec
from msgspec.structs import replace

from serving.errors import HandoffError, OverloadedError, RequestError, ServingError, UnavailableError
from serving.ids import SequenceId
from serving.values.sequence import DraftUse, FinishReason, HandoffTicket, PoolUse, TokenLogprobs


class Value(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of values that are sent over links and stored in decision logs; its subclasses form tagged unions."""


class FailKind(Enum):
    """Why a sequence failed, or was refused; determines the HTTP status."""

    DEADLINE = "deadline"
    ENGINE = "engine"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    INVALID = "invalid"
    POISON = "poison"
    """The sequence crashed the instances that computed it."""
    DRAINING = "draining"
    """A draining instance refuses it. Only sent by instances; no request ends with it."""


class Tokens(Value, frozen=True, gc=False):
    """New tokens of a sequence, its end, or both.

    Args:
        position: output tokens before these ones.
        tokens: may be empty if only the end is reported (deadline, `max_tokens = 0`).
        logprobs: one per token if requested, else empty.
        prompt_logprobs: for prompt positions 1 ...; first event only, if requested.
        cached_tokens: tokens whose KV was not computed but cached at the instance or pulled; first event only.
        finish_reason: set on the last event.
        pool: use of the KV-cache pool; first event only, None without a pool.
        drafts: result of the step's draft tokens; None if there were none.
        waited_s: time from its arrival at the instance to its first admission [s]; first event only.
        preempted: number of preemptions at the instance since the last event.
        masked: tokens, of the prompt too, that were computed since then while experts were masked.
    """

    sequence_id: SequenceId
    position: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    pool: PoolUse | None = None
    drafts: DraftUse | None = None
    waited_s: float | None = None
    preempted: int = 0
    masked: int = 0


class Prefilled(Value, frozen=True, gc=False):
    """The blocks are registered: the sequence waits at the instance until another one adopts it.

    Its prompt is computed; or it was decoded there and the instance drains: then `first` has no tokens.
    """

    first: Tokens
    ticket: HandoffTicket

    @property
    def sequence_id(self) -> SequenceId:
        return self.first.sequence_id


class Adopted(Value, frozen=True, gc=False):
    """The KV of `ticket_id` has arrived: its source can free its copy."""

    sequence_id: SequenceId
    ticket_id: str


class Lost(Value, frozen=True, gc=False):
    """The instance has dropped the sequence: it failed on it, or its KV did not arrive."""

    sequence_id: SequenceId
    reason: str


class Refused(Value, frozen=True, gc=False):
    """The instance refuses the sequence: its queues are full, it drains, or the command is invalid."""

    sequence_id: SequenceId
    kind: FailKind
    reason: str
    retry_after_s: float = 0.0


class Leaving(Value, frozen=True, gc=False):
    """Request of a draining instance to move this sequence, which it keeps running until it is cancelled.

    Args:
        handoff: whether the sequence is a handoff not pulled yet, instead of a prompt not computed yet.
    """

    sequence_id: SequenceId
    handoff: bool


News = Tokens | Prefilled | Adopted | Lost | Refused | Leaving


def refusal(sequence_id: SequenceId, error: ServingError) -> Lost | Refused:
    """The event for a sequence that an engine refuses.

    Args:
        error: raised by the engine.
    """
    if isinstance(error, HandoffError):
        return Lost(sequence_id, str(error))
    if isinstance(error, OverloadedError):
        return Refused(sequence_id, FailKind.OVERLOADED, str(error), error.retry_after_s)
    if isinstance(error, UnavailableError):
        return Refused(sequence_id, FailKind.DRAINING, str(error))
    kind = FailKind.INVALID if isinstance(error, RequestError) else FailKind.ENGINE
    return Refused(sequence_id, kind, str(error))


def ends(news: object) -> bool:
    """Whether the instance has finished with the sequence."""
    return isinstance(news, Lost | Refused) or (isinstance(news, Tokens) and news.finish_reason is not None)


def in_time_of(news: News, time_scale: float) -> News:
    """The event with its times converted to another clock.

    Args:
        time_scale: seconds of its present clock per second of the other.
    """
    match news:
        case Tokens(waited_s=float(waited_s)):
            return replace(news, waited_s=waited_s / time_scale)
        case Prefilled(first=first) if first.waited_s is not None:
            return replace(news, first=replace(first, waited_s=first.waited_s / time_scale))
        case Refused() if news.retry_after_s:
            return replace(news, retry_after_s=news.retry_after_s / time_scale)
    return news

"""A request as gateways take it from their HTTP side, and what they give back."""

from serving.ids import RequestId
from serving.values.news import FailKind, Tokens, Value
from serving.values.sequence import SequenceSpec


class GenerationJob(Value, frozen=True, gc=False):
    """One HTTP request's work. `sequences[i]` is choice `i`; `sequence_id` is `<request_id>/<i>`.

    Args:
        key: whose it is, when several share the queue; empty on an open server.
        weight: of that key's share.
        mark: fingerprint by which a request that was told to come back is recognised; 0 = made of the first prompt.
    """

    request_id: RequestId
    sequences: tuple[SequenceSpec, ...]
    key: str = ""
    weight: float = 1.0
    mark: int = 0


class SequenceUpdate(Value, frozen=True, gc=False):
    """New output of one choice: each token exactly once, in order.

    Args:
        index: choice index.
        news: zero or more new tokens, at most one finish; what is told once comes with the first.
        queue_s: time that the sequence waited before work on it began [s]; first update only, None = not known.
        resumptions: times so far that the sequence had to go on elsewhere, because an instance failed it.
        number: of the job at its gateway.
        preempted: times so far that the sequence had to give its blocks back for want of room.
    """

    index: int
    news: Tokens
    queue_s: float | None = None
    resumptions: int = 0
    number: int = 0
    preempted: int = 0


class Fail(Value, frozen=True, gc=False):
    """A sequence, and so its request, is over without a proper end."""

    kind: FailKind
    reason: str

"""A request that a gateway receives from its HTTP API, and the values that it returns."""

from serving.ids import RequestId
from serving.values.news import FailKind, Tokens, Value
from serving.values.sequence import SequenceSpec


class GenerationJob(Value, frozen=True, gc=False):
    """One HTTP request's work. `sequences[i]` is choice `i`; `sequence_id` is `<request_id>/<i>`.

    Args:
        key: API key, when several share the queue; empty on an open server.
        weight: of that key's share.
        mark: fingerprint that recognizes a retry after a Retry-After; 0 = computed from the first prompt.
        session: conversation of the client that the request continues, unique among the requests of its key; empty =
            none is known.
    """

    request_id: RequestId
    sequences: tuple[SequenceSpec, ...]
    key: str = ""
    weight: float = 1.0
    mark: int = 0
    session: str = ""


class SequenceUpdate(Value, frozen=True, gc=False):
    """New output of one choice: each token exactly once, in order.

    Args:
        index: choice index.
        news: zero or more new tokens, at most one finish; data sent once is in the first event.
        queue_s: time that the sequence waited before work on it started [s]; first update only, None = unknown.
        resumptions: times so far that the sequence moved to another instance after a failure.
        number: of the job at its gateway.
        preempted: times so far that the sequence was preempted for lack of capacity.
        masked: its tokens so far, of prompt and output, that were computed while experts were masked.
    """

    index: int
    news: Tokens
    queue_s: float | None = None
    resumptions: int = 0
    number: int = 0
    preempted: int = 0
    masked: int = 0


class Fail(Value, frozen=True, gc=False):
    """A sequence, and so its request, has failed."""

    kind: FailKind
    reason: str

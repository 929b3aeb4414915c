"""Timelines of requests as values: consecutive parts from arrival to the last byte.

Each process measures its own parts on its own clock. The gateway's events delimit the parts; the time between two of
them is divided into the durations that instances reported, and the remainder is `NETWORK`.
"""

from typing import Literal

from msgspec import Struct

TOKENIZING = "tokenizing"
WAITING = "waiting for its turn"
ROUTING = "moving on"
RESUMING = "resuming elsewhere"
INSTANCE_QUEUE = "waiting at the instance"
STEP_WAIT = "waiting for a step"
POOL_GET = "pool lookup and get"
PREFILL = "prefill"
CHECKSUMS = "checksums of the handoff"
HANDOFF = "handoff"
DECODE = "decode steps"
OTHER_STEPS = "steps of other sequences"
BETWEEN = "between steps"
NETWORK = "network and waiting for frames"
NO_NEWS = "no news from the instance"
OTHER_CHOICES = "waiting for other choices"
WRITING = "writing the answer"

Outcome = Literal["stop", "length", "abort", "error"]


class TimePart(Struct, frozen=True, omit_defaults=True):
    """One part of a timeline.

    Args:
        start_s: since arrival [s].
        replica, host: where it was spent; empty = at the gateway.
        tokens: fed, found or sampled in it; frames: received in it.
        nbytes: KV moved; source: the host that sent it.
        predicted_s: duration on real NPUs [s]; 0 = unknown.
    """

    kind: str
    start_s: float
    seconds: float
    replica: str = ""
    host: str = ""
    tokens: int = 0
    frames: int = 0
    nbytes: int = 0
    source: str = ""
    predicted_s: float = 0.0


class ChoiceLine(Struct, frozen=True):
    """One choice. `parts` are consecutive and cover the whole request.

    Args:
        resumed: number of times it was resumed on another instance.
    """

    index: int
    parts: tuple[TimePart, ...]
    tokens: int
    resumed: int
    first_token_s: float | None


class Answered(Struct, frozen=True):
    """End of a request, recorded by its HTTP handler.

    Args:
        arrived, ended: by the gateway's clock [s].
        names: ids by which its client can look it up, the response's first.
        trace: header `traceparent` of the request; empty = none.
    """

    arrived: float
    ended: float
    outcome: Outcome
    names: tuple[str, ...] = ()
    trace: str = ""


class RequestTimes(Struct, frozen=True):
    """One finished request.

    Args:
        arrived: seconds since 1970, by the gateway's clock.
        total_s: from its arrival to its end [s].
        choices: the choices that finished last, the very last first.
        tokens, resumed: of all its choices together.
        reason: of a failure; empty = none.
        cause: the largest part, as a sentence.
        names: further ids by which it can be found.
        trace: the W3C trace context that its client sent; empty = none.
    """

    request_id: str
    namespace: str
    arrived: float
    total_s: float
    outcome: Outcome
    prompt_tokens: int
    choices: tuple[ChoiceLine, ...]
    tokens: int
    resumed: int
    cause: str
    reason: str = ""
    trace: str = ""
    names: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it got no complete response."""
        return self.outcome in ("abort", "error")

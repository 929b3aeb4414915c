"""Wire models of timelines, used only for `/openapi.json`, as in `answers`."""

from serving.gateway.api.answers import Answer, Count
from serving.gateway.core.timeline import Outcome


class TimelinePart(Answer):
    """Part of a request's time: its start since arrival, its duration [s]; without `replica` at the gateway."""

    kind: str
    start_s: float
    seconds: float
    replica: str = ""
    host: str = ""
    tokens: Count = 0
    frames: Count = 0
    nbytes: Count = 0
    source: str = ""
    predicted_s: float = 0.0


class TimelineChoice(Answer):
    """One choice. Its parts are consecutive and cover the whole request."""

    index: Count
    parts: list[TimelinePart]
    tokens: Count
    resumed: Count
    first_token_s: float | None


class PastRequest(Answer):
    """A finished request. `arrived` in seconds since 1970; `cause` names the largest part of its time."""

    request_id: str
    namespace: str
    arrived: float
    total_s: float
    outcome: Outcome
    prompt_tokens: Count
    tokens: Count
    resumed: Count
    cause: str
    reason: str
    trace: str
    names: list[str]


class PastRequestTimeline(PastRequest):
    """GET /v1/requests/{request_id}/timeline."""

    choices: list[TimelineChoice]


class PastRequests(Answer):
    """GET /v1/requests."""

    object: str
    data: list[PastRequest]

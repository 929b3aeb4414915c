"""Wire models of the routes about KV hints."""

from typing import Annotated, Literal

from pydantic import Field

from serving.gateway.api.answers import Answer, Count
from serving.gateway.api.hints.fields import Actions, Version
from serving.gateway.api.schema import WireModel


class KvHintsRequest(WireModel):
    """POST /v1/kv_hints: vLLM's envelope."""

    protocol_version: Version
    message_id: Annotated[str, Field(min_length=1, max_length=128)]
    actions: Actions


class CacheTouchRequest(WireModel):
    """POST /v1/messages/cache_touch."""

    request_id: Annotated[str, Field(min_length=1, max_length=256)]


class HintResult(Answer):
    """Outcome of one action: so many of so many tokens."""

    action_id: str
    outcome: Literal["accepted", "clipped", "deferred", "rejected", "missing"]
    tokens: Count
    of_tokens: Count
    reason: str


class KvHintsAnswer(Answer):
    """POST /v1/kv_hints, and `kv_hints` of an answer if its request has `return_kv_hints`."""

    message_id: str
    outcomes: list[HintResult]


class CacheTouched(Answer):
    """POST /v1/messages/cache_touch."""

    type: Literal["cache_touch"]
    request_id: str
    outcome: Literal["accepted", "clipped", "deferred"]
    tokens: Count


class PoolSession(Answer):
    """A branch of a session that the pool keeps blocks of."""

    namespace: str
    session: str
    branch: str
    kind: Literal["retain", "pin"]
    dram_bytes: Count
    ssd_bytes: Count
    seconds_left: float
    last: str


class PoolSessions(Answer):
    """GET /pool/sessions. `complete`: every server responded, and none has more than it lists."""

    sessions: list[PoolSession]
    complete: bool

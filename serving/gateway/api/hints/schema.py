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
    """A session that the pool keeps blocks of. `left_s`: until its last claim ends; `outcome`: of its latest action."""

    session: str
    branches: list[str]
    dram_bytes: Count
    ssd_bytes: Count
    left_s: float
    outcome: str


class PoolSessions(Answer):
    """GET /pool/sessions: those with the latest claims. `complete`: every server responded."""

    namespace: str
    sessions: list[PoolSession]
    complete: bool

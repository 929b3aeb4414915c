"""`/v1/requests`: time lines of past requests."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.answers import Answer, Count
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import answers
from serving.gateway.api.routes import json_response
from serving.gateway.core.timeline import MOST_ROWS, Choose, Outcome, RequestTimes

# `/v1/requests`: timelines of past requests, for their own tenant and for administrators.


class Timelines(Protocol):
    """Timelines of all gateways."""

    async def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """See `TimelineShelf.find`."""
        ...

    async def choose(self, which: Choose, limit: int, namespace: str | None) -> Sequence[RequestTimes]:
        """See `TimelineShelf.choose`."""
        ...


def timeline_router(timelines: Timelines) -> APIRouter:
    router = APIRouter(tags=["information"])

    @router.get("/v1/requests", responses=answers(PastRequests))
    async def requests(
        request: Request,
        which: Choose = "newest",
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 20,
    ) -> Response:
        """Past requests: `which` is `newest` or `slowest` (first), `failed` or `resumed` (only those); at most `limit`.

        A tenant gets only its own. `cloudmatrix explain` prints them.
        """
        found = await timelines.choose(which, limit, _namespace(request))
        return json_response({"object": "list", "data": [_summary(times) for times in found]})

    @router.get("/v1/requests/{request_id}/timeline", responses=answers(PastRequestTimeline, 404))
    async def timeline(request: Request, request_id: str) -> Response:
        """Timeline of a finished request: parts that sum to its time.

        `request_id` is the `id` of its response, or its `X-Request-ID`. 404 for a request of another tenant.
        """
        times = await timelines.find(request_id, _namespace(request))
        if times is None:
            raise RouteError(
                404,
                f"no timeline of request '{request_id[:100]}': it still runs, is no longer kept, or never existed",
            )
        return json_response(times)

    return router


def _namespace(request: Request) -> str | None:
    tenant = tenant_of(request)
    return None if tenant.admin else tenant.namespace


def _summary(times: RequestTimes) -> dict[str, Any]:
    whole = msgspec.to_builtins(times)
    del whole["choices"]
    return whole  # type: ignore[no-any-return]


# Wire models of timelines, used only for `/openapi.json`, as in `answers`.


class TimelineSessions(Answer):
    """Times of a group's sessions in some steps, as `SessionTimes` [s]."""

    a2e_s: float = 0.0
    experts_s: float = 0.0
    e2a_s: float = 0.0
    rounds: Count = 0


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
    sessions: TimelineSessions = TimelineSessions()


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
    first_token_s: float | None
    replicas: list[str]
    cached_tokens: Count
    pulled_tokens: Count


class PastRequestTimeline(PastRequest):
    """GET /v1/requests/{request_id}/timeline."""

    choices: list[TimelineChoice]


class PastRequests(Answer):
    """GET /v1/requests."""

    object: str
    data: list[PastRequest]

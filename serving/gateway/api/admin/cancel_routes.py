"""`/v1/requests/{id}/cancel` and `/abort_requests`: end running requests, in whichever gateway they run."""

from collections.abc import Sequence
from typing import Literal, Protocol

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.answers import Answer
from serving.gateway.api.body import parse_body
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers
from serving.gateway.api.routes import json_response, request_body
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.api.schema import AbortRequests

_BODY_BYTES = 256 << 10


class RequestCancelled(Answer):
    """POST /v1/requests/{request_id}/cancel."""

    id: str
    object: Literal["request.cancelled"]
    cancelled: Literal[True]


class RequestsAborted(Answer):
    """POST /abort_requests. `aborted` names those that were running."""

    aborted: list[str]


class Cancels(Protocol):
    """Running requests of all gateways."""

    async def cancel(self, ids: Sequence[str], namespace: str | None) -> Sequence[str]:
        """See `RunningRequests.cancel`."""
        ...


class OwnRequests:
    """`Cancels` of a single gateway."""

    def __init__(self, running: RunningRequests) -> None:
        self._running = running

    async def cancel(self, ids: Sequence[str], namespace: str | None) -> Sequence[str]:
        """See `RunningRequests.cancel`."""
        return self._running.cancel(ids, namespace)


def cancel_router(running: Cancels) -> APIRouter:
    """Routes that cancel requests: a tenant's own, or any for administrators."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/requests/{request_id}/cancel", responses=answers(RequestCancelled, 404))
    async def cancel(request: Request, request_id: str) -> Response:
        """Cancel a running request by the `id` of its response, or its `X-Request-ID`.

        Its client gets an error with the code `request_cancelled`. 404 if this tenant has no such request running.
        """
        if not await running.cancel((request_id,), _namespace(request)):
            raise RouteError(404, f"no request '{request_id[:100]}' is running")
        return json_response({"id": request_id, "object": "request.cancelled", "cancelled": True})

    @router.post(
        "/abort_requests", openapi_extra=request_body("AbortRequests"), responses=answers(RequestsAborted, *BODY_ERRORS)
    )
    async def abort(request: Request) -> Response:
        """Cancel several running requests."""
        body = await parse_body(request, AbortRequests, _BODY_BYTES)
        return json_response({"aborted": list(await running.cancel(body.request_ids, _namespace(request)))})

    return router


def _namespace(request: Request) -> str | None:
    tenant = tenant_of(request)
    return None if tenant.admin else tenant.namespace

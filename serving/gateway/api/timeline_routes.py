"""`/v1/requests`: time lines of past requests, for whoever sent them and for administrators."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.errors import RouteError
from serving.gateway.api.routes import json_response
from serving.gateway.api.tenant import tenant_of
from serving.gateway.core.timeline import RequestTimes
from serving.gateway.core.timeline_shelf import Choose

MOST_LISTED = 100


class Timelines(Protocol):
    """Time lines of all gateways."""

    async def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """See `TimelineShelf.find`."""
        ...

    async def choose(self, which: Choose, limit: int, namespace: str | None) -> Sequence[RequestTimes]:
        """See `TimelineShelf.choose`."""
        ...


def timeline_router(timelines: Timelines) -> APIRouter:
    """The routes."""
    router = APIRouter()

    @router.get("/v1/requests", include_in_schema=False)
    async def requests(
        request: Request,
        which: Choose = "newest",
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
    ) -> Response:
        """Past requests, newest or slowest first, or only those that failed or were resumed; a tenant's own only."""
        found = await timelines.choose(which, limit, _namespace(request))
        return json_response({"object": "list", "data": [_summary(times) for times in found]})

    @router.get("/v1/requests/{request_id}/timeline", include_in_schema=False)
    async def timeline(request: Request, request_id: str) -> Response:
        """The time line of a request that is over. 404 for one of another tenant, too."""
        times = await timelines.find(request_id, _namespace(request))
        if times is None:
            raise RouteError(
                404, f"no time line of a request '{request_id[:100]}': it is under way, is forgotten, or never was here"
            )
        return json_response(times)

    return router


def _namespace(request: Request) -> str | None:
    tenant = tenant_of(request)
    return None if tenant.admin else tenant.namespace


def _summary(times: RequestTimes) -> dict[str, Any]:
    """One line of the list."""
    whole = msgspec.to_builtins(times)
    del whole["choices"]
    return whole  # type: ignore[no-any-return]

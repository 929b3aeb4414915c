"""`/cluster` and `/experts`: the state of the whole system, for `cloudmatrix status` and `cloudmatrix experts`."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import PermissionDeniedError
from serving.gateway.api.routes import json_response
from serving.gateway.api.tenant import tenant_of


def cluster_router(status: Callable[[], Awaitable[dict[str, Any]]], experts: Callable[[], dict[str, Any]]) -> APIRouter:
    """The routes.

    Args:
        status: reads pools, replicas, NPUs and queues at the time of the call; JSON-ready.
        experts: reads load and placement of experts at the time of the call; JSON-ready.
    """
    router = APIRouter()

    @router.get("/cluster", include_in_schema=False)
    async def cluster(request: Request) -> Response:
        """Pools, replicas, NPUs, memory, queues. Not for tenants: processes, nodes and load reveal other tenants."""
        _require_system(request)
        return json_response(await status())

    @router.get("/experts", include_in_schema=False)
    async def expert_load(request: Request) -> Response:
        """Groups of ranks: balancedness, busiest experts, placement. Not for tenants."""
        _require_system(request)
        return json_response(experts())

    return router


def _require_system(request: Request) -> None:
    if not tenant_of(request).may_see_system:
        raise PermissionDeniedError(
            "the state of the whole system is for administrators only; use one of `[gateway] admin_keys`"
        )

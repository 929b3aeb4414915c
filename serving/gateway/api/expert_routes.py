"""Commands to groups of ranks over HTTP, for administrators; `cloudmatrix experts` sends them.

    POST /experts/rebalance    {"policy": "global", "dry_run": true, "group": "decode#k3jx9a"}, each optional
    POST /experts/move         {"layer": 0, "expert": 3, "rank": 1}, and "group"
    POST /experts/load         {"after": 88}, and "group": rows by time slice, see `ReadLoad`

Errors: 403 for others, 404 for unknown groups, layers, experts or ranks, 409 for what the group cannot do at present.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidRequestError, PermissionDeniedError, UnavailableError
from serving.gateway.api.body import parse_body
from serving.gateway.api.errors import RouteError
from serving.gateway.api.routes import json_response
from serving.gateway.api.schema import WireModel
from serving.gateway.api.tenant import tenant_of
from serving.values.operator_order import MoveOneExpert, OperatorOrder, OrderAnswer, ReadLoad, RebalanceExperts

MAX_BODY_BYTES = 4096

PostOrder = Callable[[str | None, OperatorOrder], Awaitable[OrderAnswer]]
"""Sends a command to a group; None = the only one. Raises: RouteError, UnavailableError."""

_Number = Annotated[int, Field(ge=0, lt=1 << 31)]


class RebalanceRequest(WireModel):
    """POST /experts/rebalance."""

    group: str | None = None
    policy: Literal["static", "time_sliced", "hierarchical", "global"] | None = None
    dry_run: bool = False


class MoveRequest(WireModel):
    """POST /experts/move."""

    group: str | None = None
    layer: _Number
    expert: _Number
    rank: _Number


class LoadRequest(WireModel):
    """POST /experts/load."""

    group: str | None = None
    after: Annotated[int, Field(ge=-1, lt=1 << 53)] | None = None


def expert_router(post: PostOrder) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/experts")

    @router.post("/rebalance", include_in_schema=False)
    async def rebalance(request: Request) -> Response:
        """Compute a new placement of experts; the response is sent as soon as the moves are known."""
        require_admin(request)
        body = await parse_body(request, RebalanceRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, RebalanceExperts(body.policy, body.dry_run))))

    @router.post("/move", include_in_schema=False)
    async def move(request: Request) -> Response:
        """Copy an expert to a rank."""
        require_admin(request)
        body = await parse_body(request, MoveRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, MoveOneExpert(body.layer, body.expert, body.rank))))

    @router.post("/load", include_in_schema=False)
    async def load(request: Request) -> Response:
        """Rows that chose each expert, by source rank and time slice, for a trace."""
        require_admin(request)
        body = await parse_body(request, LoadRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, ReadLoad(body.after))))

    return router


def accepted(answer: OrderAnswer, param: str | None = None) -> dict[str, Any]:
    """An instance's reply as a JSON-ready response.

    Args:
        param: field of the body that the reply may refuse.
    Raises: RouteError with 404 for unknown names, 409 for what is not possible at present; InvalidRequestError for
        what is never possible; UnavailableError.
    """
    if answer.accepted:
        return {"message": answer.reason, **answer.detail}
    if answer.unknown:
        raise RouteError(404, answer.reason)
    match answer.detail.get("kind"):
        case "no_room":
            raise RouteError(409, answer.reason, "no_room")
        case "invalid":
            raise InvalidRequestError(answer.reason, param=param, code="invalid_value")
        case "unavailable":
            raise UnavailableError(answer.reason)
        case _:
            raise RouteError(409, answer.reason, "conflict")


def choose_group(groups: dict[str, str], wanted: str | None) -> str:
    """Actor name of the rank that receives a group's commands.

    Args:
        groups: actor name of one rank, by the group's name.
        wanted: name of a group; None = the only one.
    Raises: RouteError if no group has that name, or there are several.
    """
    names = ", ".join(sorted(groups))
    if not groups:
        raise RouteError(404, "there is no group of ranks; `[decode] ep = 2` creates one")
    if wanted is None and len(groups) > 1:
        raise RouteError(404, f"there are several groups; name one of {names}")
    actor = groups.get(wanted) if wanted is not None else next(iter(groups.values()))
    if actor is None:
        raise RouteError(404, f"there is no group '{str(wanted)[:200]}', only {names}")
    return actor


def require_admin(request: Request) -> None:
    """Require an administrator's key, because all tenants share the groups.

    Raises: PermissionDeniedError.
    """
    if not tenant_of(request).admin:
        raise PermissionDeniedError("commands to groups are for administrators only; use one of `[gateway] admin_keys`")

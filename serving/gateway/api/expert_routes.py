"""Orders to groups of ranks over HTTP, for administrators; `cloudmatrix experts` sends them.

    POST /experts/rebalance    {"policy": "global", "dry_run": true, "group": "decode#k3jx9a"}, each optional
    POST /experts/move         {"layer": 0, "expert": 3, "rank": 1}, and "group"
    POST /experts/load         {"after": 88}, and "group": rows by slice of time, see `ReadLoad`

Refused are those of others (403), for what does not exist (404), and what the group cannot do now (409).
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
"""Gives an order to a group; None = the only one. Raises: RouteError, UnavailableError."""

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
        """Place experts anew; answered as soon as it is known what moves."""
        require_admin(request)
        body = await parse_body(request, RebalanceRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, RebalanceExperts(body.policy, body.dry_run))))

    @router.post("/move", include_in_schema=False)
    async def move(request: Request) -> Response:
        """Bring a copy of an expert to a rank."""
        require_admin(request)
        body = await parse_body(request, MoveRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, MoveOneExpert(body.layer, body.expert, body.rank))))

    @router.post("/load", include_in_schema=False)
    async def load(request: Request) -> Response:
        """Rows that chose each expert, by source rank and slice of time, for a trace."""
        require_admin(request)
        body = await parse_body(request, LoadRequest, MAX_BODY_BYTES)
        return json_response(accepted(await post(body.group, ReadLoad(body.after))))

    return router


def accepted(answer: OrderAnswer, param: str | None = None) -> dict[str, Any]:
    """A shell's answer as it is shown.

    Args:
        param: field of the body that an order may be refused for.
    Raises: RouteError with 404 for what does not exist, 409 for what cannot be now; InvalidRequestError for what can
        never be; UnavailableError.
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
    """Rank of a group that takes its orders.

    Args:
        groups: by name: name of the actor of one of its ranks.
        wanted: name of a group; None = the only one.
    Raises: RouteError if there is none of that name, or there are several.
    """
    names = ", ".join(sorted(groups))
    if not groups:
        raise RouteError(404, "there is no group of ranks; `[decode] ep = 2` makes one")
    if wanted is None and len(groups) > 1:
        raise RouteError(404, f"there are several groups; name one of {names}")
    actor = groups.get(wanted) if wanted is not None else next(iter(groups.values()))
    if actor is None:
        raise RouteError(404, f"there is no group '{str(wanted)[:200]}', only {names}")
    return actor


def require_admin(request: Request) -> None:
    """Groups are everybody's.

    Raises: PermissionDeniedError.
    """
    if not tenant_of(request).admin:
        raise PermissionDeniedError("orders to groups are for administrators; use one of `[gateway] admin_keys`")

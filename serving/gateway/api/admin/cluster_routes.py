"""The whole system over HTTP: `/cluster`, `/experts`, and orders to groups of ranks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidRequestError, PermissionDeniedError, UnavailableError
from serving.gateway.api.body import parse_body
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.routes import json_response
from serving.gateway.api.schema import DrainRankRequest, ResizeGroupsRequest, SwitchRoleRequest, WireModel
from serving.values.group import (
    DrainRank,
    MoveOneExpert,
    OperatorOrder,
    OrderAnswer,
    RankRole,
    ReadLoad,
    RebalanceExperts,
    ResizeGroup,
    SizeOrder,
    SwitchRole,
)

# `/cluster` and `/experts`: the state of the whole system, for `cloudmatrix status` and `cloudmatrix experts`.


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


# Commands to groups of ranks over HTTP, for administrators; `cloudmatrix experts` sends them.
#
#     POST /experts/rebalance    {"policy": "global", "dry_run": true, "group": "decode#k3jx9a"}, each optional
#     POST /experts/move         {"layer": 0, "expert": 3, "rank": 1}, and "group"
#     POST /experts/load         {"after": 88}, and "group": rows by time slice, see `ReadLoad`
#
# Errors: 403 for others, 404 for unknown groups, layers, experts or ranks, 409 for what the group cannot do at present.

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


# Sizes of groups of ranks over HTTP, for administrators.
#
#   POST /experts/resize    `{"pool": "decode", "ranks": 4}`: each group of the pool grows or shrinks while serving;
#                           of groups with two kinds of ranks, "ranks" is that of attention ranks, and "expert_ranks"
#   POST /experts/drain     `{"rank": "decode#k3jx9a.r1"}`: its sequences move to other ranks, a new process replaces it
#   POST /experts/switch    `{"rank": "decode#k3jx9a.r1", "role": "experts"}`: the same, but an expert rank replaces it
#
# All respond when the groups have accepted the command; `GET /experts` shows their progress.


@dataclass(frozen=True, slots=True)
class OrderedGroup:
    """A group that accepts commands.

    Args:
        actor: name of the rank's actor that receives the commands.
    """

    name: str
    pool: str
    actor: str


Post = Callable[[str, SizeOrder], Awaitable[OrderAnswer]]
"""Sends a command to a rank, by name of its actor. Raises: UnavailableError."""


def group_size_router(groups: Callable[[], list[OrderedGroup]], post: Post) -> APIRouter:
    """The routes.

    Args:
        groups: returns the present groups.
    """
    router = APIRouter()

    @router.post("/experts/resize", include_in_schema=False)
    async def resize(request: Request) -> Response:
        """Change the number of ranks of every group of a pool; stop at the first refusal."""
        require_admin(request)
        body = await parse_body(request, ResizeGroupsRequest, MAX_BODY_BYTES)
        found = [one for one in groups() if one.pool == body.pool]
        if not found:
            raise RouteError(
                404, f"pool '{body.pool[:200]}' has no group of ranks; `cloudmatrix experts` lists all groups"
            )
        if body.ranks is None and body.expert_ranks is None:
            raise InvalidRequestError("give ranks or expert_ranks", param="ranks", code="missing_required_parameter")
        order = ResizeGroup(body.ranks, body.expert_ranks)
        answers = [accepted(await post(one.actor, order), "ranks") for one in found]
        return json_response({"groups": [_row(one, answer) for one, answer in zip(found, answers, strict=True)]})

    @router.post("/experts/drain", include_in_schema=False)
    async def drain(request: Request) -> Response:
        """Replace one rank without losing its sequences."""
        require_admin(request)
        body = await parse_body(request, DrainRankRequest, MAX_BODY_BYTES)
        found, number = _named(groups(), body.rank)
        answer = accepted(await post(found.actor, DrainRank(number)))
        return json_response({"groups": [_row(found, answer)]})

    @router.post("/experts/switch", include_in_schema=False)
    async def switch(request: Request) -> Response:
        """Replace the last rank of its kind with a rank of the other kind."""
        require_admin(request)
        body = await parse_body(request, SwitchRoleRequest, MAX_BODY_BYTES)
        found, number = _named(groups(), body.rank)
        answer = accepted(await post(found.actor, SwitchRole(number, RankRole(body.role))), "rank")
        return json_response({"groups": [_row(found, answer)]})

    return router


def _named(groups: list[OrderedGroup], rank: str) -> tuple[OrderedGroup, int]:
    """The group and number of a rank. Raises: RouteError."""
    name, _, number = rank.rpartition(".r")
    found = next((one for one in groups if one.name == name and number.isdecimal()), None)
    if found is None:
        raise RouteError(404, f"there is no rank '{rank[:200]}'; `cloudmatrix status` shows their names")
    return found, int(number)


def _row(group: OrderedGroup, answer: dict[str, Any]) -> dict[str, Any]:
    return {"group": group.name, "pool": group.pool, **answer}

"""Sizes of groups of ranks over HTTP, for administrators.

    POST /experts/resize    `{"pool": "decode", "ranks": 4}`: each group of the pool grows or shrinks while serving
    POST /experts/drain     `{"rank": "decode#k3jx9a.r1"}`: its sequences move to other ranks, a new process replaces it

Both respond when the groups have accepted the command; `GET /experts` shows their progress.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.body import parse_body
from serving.gateway.api.errors import RouteError
from serving.gateway.api.expert_routes import accepted, require_admin
from serving.gateway.api.routes import json_response
from serving.gateway.api.schema import DrainRankRequest, ResizeGroupsRequest
from serving.values.operator_order import DrainRank, OrderAnswer, ResizeGroup, SizeOrder

MAX_BODY_BYTES = 4096


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
        answers = [accepted(await post(one.actor, ResizeGroup(body.ranks)), "ranks") for one in found]
        return json_response({"groups": [_row(one, answer) for one, answer in zip(found, answers, strict=True)]})

    @router.post("/experts/drain", include_in_schema=False)
    async def drain(request: Request) -> Response:
        """Replace one rank without losing its sequences."""
        require_admin(request)
        body = await parse_body(request, DrainRankRequest, MAX_BODY_BYTES)
        name, _, number = body.rank.rpartition(".r")
        found = next((one for one in groups() if one.name == name and number.isdecimal()), None)
        if found is None:
            raise RouteError(404, f"there is no rank '{body.rank[:200]}'; `cloudmatrix status` shows their names")
        answer = accepted(await post(found.actor, DrainRank(int(number))))
        return json_response({"groups": [_row(found, answer)]})

    return router


def _row(group: OrderedGroup, answer: dict[str, Any]) -> dict[str, Any]:
    return {"group": group.name, "pool": group.pool, **answer}

"""`POST /query`: how much of a prompt each instance has cached, in the form of Mooncake's conductor.

For routers in front of several systems, or of instances that they address themselves. A tenant's key sees its own
cache only: others' hashes start with another salt, and the response would reveal their prompts.
"""

from collections.abc import Sequence
from typing import Protocol

from fastapi import APIRouter
from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidRequestError, PermissionDeniedError
from serving.gateway.api.answers import Answer, Count
from serving.gateway.api.body import parse_body
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.schema import CacheQuery
from serving.gateway.core.prefix_hits import PrefixHit
from serving.ids import BlockHash
from serving.values.pool_view import namespace_salt, request_salt
from serving.values.prefix_hash import prefix_hashes


class PrefixFinder(Protocol):
    """Instances and memory servers. `block_tokens`: tokens of their KV blocks."""

    block_tokens: int

    async def find(self, namespace: str, hashes: Sequence[BlockHash]) -> Sequence[PrefixHit]:
        """Blocks of a chain that each instance could reuse; those that do not respond in time are absent."""
        ...


class PrefixMatch(Answer):
    """Tokens of a prompt's prefix that an instance could reuse: together, in its HBM, and in the tiers of the pool.

    Each number has both of its names in Mooncake.
    """

    longest_matched: Count
    dp: dict[str, Count]
    gpu: Count
    cpu: Count
    disk: Count
    DP: dict[str, Count]
    GPU: Count
    CPU: Count
    DISK: Count


class CacheMatches(RootModel[dict[str, dict[str, PrefixMatch]]]):
    """POST /query: by tenant and instance."""


def prefix_router(finder: PrefixFinder, endpoint: RouteServices, tenants: frozenset[str]) -> APIRouter:
    """The route.

    Args:
        tenants: names of all tenants.
    """
    router, block_tokens = APIRouter(tags=["KV-cache pool"]), finder.block_tokens

    @router.post(
        "/query",
        openapi_extra=request_body("CacheQuery"),
        responses=answers(CacheMatches, 403, 404, 429, *BODY_ERRORS),
    )
    async def query(request: Request) -> Response:
        """How many tokens of a prompt each instance has cached, as Mooncake's conductor answers it.

        Only full blocks count. No block is leased, promoted or counted as used. A tenant's key may query
        that tenant only, an admin key all of them.
        """
        body = await parse_body(request, CacheQuery, endpoint.settings.max_body_bytes)
        endpoint.check_model(body.model)
        tenant = tenant_of(request)
        name = tenant.namespace if body.tenant_id is None else body.tenant_id
        if not tenant.may_manage(name):
            raise PermissionDeniedError(
                f"this API key may not ask about the cache of tenant '{name[:200]}'", param="tenant_id"
            )
        if name not in tenants:
            raise InvalidRequestError(f"there is no tenant '{name[:200]}'", param="tenant_id", code="invalid_value")
        if body.block_size != block_tokens:
            raise InvalidRequestError(
                f"'block_size' must be {block_tokens}, the size of this server's blocks, not {body.block_size}",
                param="block_size",
                code="invalid_value",
            )
        most = endpoint.model.max_model_len
        if len(body.token_ids) > most:
            raise InvalidRequestError(
                f"'token_ids' has {len(body.token_ids)} tokens; the model takes at most {most}",
                param="token_ids",
                code="invalid_value",
            )
        salt = request_salt(namespace_salt(endpoint.settings.pool_salt, name), body.cache_salt)
        hashes = await endpoint.translated(request, lambda: prefix_hashes(body.token_ids, block_tokens, salt))
        hits = [hit for hit in await finder.find(name, hashes) if body.instance_id in (None, hit.instance)]
        return json_response({name: {hit.instance: _match(hit, block_tokens) for hit in hits}})

    return router


def _match(hit: PrefixHit, size: int) -> dict[str, object]:
    media = {"dp": {str(hit.rank): hit.gpu * size}, "gpu": hit.gpu * size, "cpu": hit.cpu * size}
    media["disk"] = hit.disk * size
    return {"longest_matched": hit.longest * size, **media, **{name.upper(): value for name, value in media.items()}}

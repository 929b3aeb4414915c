"""`POST /v1/kv_hints`: actions on sessions without a request; `GET /pool/sessions`: what sessions hold."""

from fastapi import APIRouter
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import PermissionDeniedError
from serving.gateway.api.body import parse_body
from serving.gateway.api.hints.desk import MOST_SESSIONS, HintDesk
from serving.gateway.api.hints.fields import asked_actions
from serving.gateway.api.hints.schema import KvHintsAnswer, KvHintsRequest, PoolSessions
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers
from serving.gateway.api.routes import json_response, request_body
from serving.gateway.core.kv_hints import plan_actions

_BODY_BYTES = 256 << 10
_NAMESPACE = {"parameters": [{"name": "namespace", "in": "query", "required": False, "schema": {"type": "string"}}]}


def hints_router(desk: HintDesk) -> APIRouter:
    """Routes about KV hints."""
    router = APIRouter()

    @router.post(
        "/v1/kv_hints",
        tags=["generation"],
        openapi_extra=request_body("KvHintsRequest"),
        responses=answers(KvHintsAnswer, *BODY_ERRORS),
    )
    async def hint(request: Request) -> Response:
        """Act on the cached prompts of sessions, and report each outcome.

        An unknown action is `rejected`, a session without cached prompts `missing`; both are no errors.
        """
        body = await parse_body(request, KvHintsRequest, _BODY_BYTES)
        namespace = tenant_of(request).namespace
        plan = plan_actions(asked_actions(body.actions, "actions"), None, desk.limits.of(namespace))
        outcomes = await desk.done(namespace, plan)
        return json_response({"message_id": body.message_id, "outcomes": outcomes})

    @router.get(
        "/pool/sessions", tags=["KV-cache pool"], openapi_extra=_NAMESPACE, responses=answers(PoolSessions, 403, 404)
    )
    async def sessions(request: Request) -> Response:
        """Sessions whose prompts the pool keeps, with their memory and the time left of their claims.

        Those of the caller's own namespace; an administrator may name another as `namespace`.
        """
        if desk.servers is None:
            raise RouteError(404, "this server runs without a KV-cache pool; `[kvcache] replicas` gives it one")
        tenant, wanted = tenant_of(request), request.query_params.get("namespace")
        if wanted is not None and not tenant.may_manage(wanted):
            raise PermissionDeniedError(f"this API key may not see the sessions of namespace '{wanted[:200]}'")
        namespace = wanted or tenant.namespace
        found, complete = await desk.servers.sessions(namespace, MOST_SESSIONS)
        listed = [{**asdict(one), "left_s": round(one.left_s, 1)} for one in found]
        return json_response({"namespace": namespace, "sessions": listed, "complete": complete})

    return router

"""The OpenAI-compatible endpoint as one ASGI application over a `GenerationBackend`.

Routes only parse, translate and respond. Layers, outermost first: the proxy's path prefix, CORS for allowed origins,
request ids, counting and bugs, the check of host names where no key is required, API keys, FastAPI's routing with typed
errors turned into OpenAI error objects, and raw ASGI responses for generated output.
"""

from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from serving.errors import ServingError
from serving.gateway.api.admin.cancel_routes import Cancels, OwnRequests, cancel_router
from serving.gateway.api.admin.pool_admin import PoolAdmin, TenantWeights
from serving.gateway.api.admin.pool_routes import pool_router
from serving.gateway.api.admin.prefix_routes import PrefixFinder, prefix_router
from serving.gateway.api.backend import GenerationBackend
from serving.gateway.api.batches.routes import batches_router, files_router
from serving.gateway.api.batches.shelf import BatchShelf, batch_shelf_in_memory
from serving.gateway.api.body import BodyRoom
from serving.gateway.api.generation_response import reply_logged
from serving.gateway.api.hints.desk import HintDesk, KvHints
from serving.gateway.api.hints.pauses import PauseDesk
from serving.gateway.api.hints.routes import hints_router
from serving.gateway.api.http.access import AccessMiddleware, DrainMiddleware, GatewayDrain, RootPathMiddleware
from serving.gateway.api.http.auth import ApiKeyMiddleware, HostMiddleware
from serving.gateway.api.http.cors import allow_origins
from serving.gateway.api.http.errors import ErrorReply, RouteError, reply_for, reply_on
from serving.gateway.api.http.tenant import KeyRing
from serving.gateway.api.messages.routes import MESSAGES_EXCHANGES, messages_router
from serving.gateway.api.openapi import describe
from serving.gateway.api.page_routes import page_router
from serving.gateway.api.pages.document import StartFacts
from serving.gateway.api.responses.background_runs import BackgroundRuns
from serving.gateway.api.responses.kept import MemoryResponseStore, ResponseShelf, ResponseStore
from serving.gateway.api.responses.routes import (
    RESPONSES_EXCHANGES,
    compaction_router,
    ended_responses_router,
    kept_responses_router,
    responses_router,
)
from serving.gateway.api.routes import GENERATION_EXCHANGES, RouteServices, generation_router, info_router, probe_router
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.text_desk import TextDesk
from serving.gateway.api.tokens.routes import TOKENS_EXCHANGES, tokens_router
from serving.gateway.api.work_store import MemoryWorkStore
from serving.telemetry.metrics import GatewayMetrics
from serving.values.pool_view import DEFAULT_NAMESPACE

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def create_app(
    backend: GenerationBackend,
    model: ServedModel,
    settings: ApiSettings,
    metrics: GatewayMetrics,
    pool: PoolAdmin | None = None,
    drain: GatewayDrain | None = None,
    responses: ResponseStore | None = None,
    running: RunningRequests | None = None,
    cancels: Cancels | None = None,
    background: BackgroundRuns | None = None,
    batches: BatchShelf | None = None,
    hints: KvHints | None = None,
    prefixes: PrefixFinder | None = None,
    pauses: PauseDesk | None = None,
) -> FastAPI:
    """Build the application. All dependencies are arguments; there is no global state.

    Args:
        pool: the KV-cache pool, if there is one.
        drain: whether this gateway shuts down; None = it never does.
        responses: store of responses; None = in memory.
        running: lists this gateway's running requests; None = a list of its own.
        cancels: cancels those of all gateways; None = there is no other gateway.
        background: this gateway's background responses; None = stored in memory.
        batches: files and batches; None = in memory.
        hints: memory servers that act on KV hints; None = there are none.
        prefixes: finds cached prefixes; None = there is no route for it.
        pauses: learns tool pauses; None = they are not learned.
    """
    app = FastAPI(
        title="CloudMatrix-Infer", version=settings.version, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.body_room = BodyRoom(settings.max_body_bytes)
    texts, running = TextDesk(settings, metrics.clock), running or RunningRequests()
    desk = HintDesk(hints, model, settings.hints, metrics, pauses)
    endpoint = RouteServices(backend, model, settings, metrics, TenantWeights(pool), texts, running, desk)
    shelf = ResponseShelf(responses or MemoryResponseStore(settings.keep, metrics.clock))
    runs = background or BackgroundRuns(MemoryWorkStore(settings.background, metrics.clock))
    runs.bind(endpoint, shelf)
    cancels, batches = cancels or OwnRequests(running), batches or batch_shelf_in_memory(settings)
    configured = frozenset({DEFAULT_NAMESPACE, *(one.name for one in settings.namespaces)})
    routers = [one(endpoint) for one in (probe_router, info_router, generation_router, messages_router, tokens_router)]
    routers += [responses_router(endpoint, shelf, runs), compaction_router(endpoint, shelf)]
    routers.append(kept_responses_router(shelf, runs, settings.request_timeout_s))
    routers.append(ended_responses_router(shelf, runs, cancels))
    routers += [files_router(batches), batches_router(endpoint, batches), cancel_router(cancels), hints_router(desk)]
    routers.append(pool_router(pool, metrics, configured))
    if prefixes is not None:
        routers.append(prefix_router(prefixes, endpoint, configured))
    routers.append(page_router(_start_facts(model, settings), lambda: app.openapi(), settings.root_path))
    for router in routers:
        app.include_router(router)
    metrics.expect(configured, (*GENERATION_EXCHANGES, *RESPONSES_EXCHANGES, *MESSAGES_EXCHANGES, *TOKENS_EXCHANGES))
    keys = KeyRing(settings)
    _add_middleware(app, keys, settings, metrics, drain)
    hosts, root_path = settings.hosts is not None, settings.root_path
    document = partial(describe, app, keys=not keys.open, hosts=hosts, root_path=root_path)
    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema
    return app


def _add_middleware(
    app: FastAPI, keys: KeyRing, settings: ApiSettings, metrics: GatewayMetrics, drain: GatewayDrain | None
) -> None:
    """Wrap the routes; what is added last sees a request first."""
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_middleware(ApiKeyMiddleware, keys=keys)
    if settings.hosts is not None:
        app.add_middleware(HostMiddleware, allowed=settings.hosts)
    if drain is not None:
        app.add_middleware(DrainMiddleware, drain=drain)
    app.add_middleware(AccessMiddleware, metrics=metrics)
    allow_origins(app, settings.allowed_origins)
    if settings.root_path:
        app.add_middleware(RootPathMiddleware, root_path=settings.root_path)


def _start_facts(model: ServedModel, settings: ApiSettings) -> StartFacts:
    return StartFacts(
        model.names[0], settings.version, model.max_model_len, settings.placeholder_tokens, settings.pools_page
    )


def _error_response(request: Request, reply: ErrorReply) -> Response:
    reply = reply_on(request.scope, reply)
    return Response(reply.body(), reply.status, media_type="application/json", headers=dict(reply.headers))


async def _on_serving_error(request: Request, error: Exception) -> Response:
    return _error_response(request, reply_logged(error))


NOT_SERVED = {
    f"/v1/{path}": f"there are no {what} here: this server generates text"
    for path, what in (
        ("embeddings", "embeddings"),
        ("rerank", "rankings"),
        ("score", "scores"),
        ("moderations", "moderations"),
        ("images/generations", "images"),
        ("audio/speech", "voices"),
        ("audio/transcriptions", "transcriptions"),
    )
}
"""Routes of OpenAI's and vLLM's APIs that need another kind of model, with the message of their 404."""


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405."""
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    path, method = request.url.path, request.method
    known = {404: NOT_SERVED.get(path, f"no route for {path}"), 405: f"{method} is not allowed for {path}"}
    text = known.get(error.status_code, error.detail)
    response = _error_response(request, reply_for(RouteError(error.status_code, text)))
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    """Methods allowed for a request's path; Starlette's own header lists only the first route's methods."""
    routes, scope = request.app.routes, request.scope
    return [m for m in _METHODS if any(route.matches({**scope, "method": m})[0] is Match.FULL for route in routes)]


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """Respond to a client that has disconnected; 499 is what proxies log for it."""
    return Response(status_code=499)

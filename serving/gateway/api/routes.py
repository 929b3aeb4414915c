"""The routes, grouped by their clients: probes, information, generation."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError, UnavailableError
from serving.gateway.api.admin.pool_admin import TenantWeights
from serving.gateway.api.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Detokenized,
    Load,
    ModelCard,
    ModelList,
    Ready,
    Tokenized,
    Version,
)
from serving.gateway.api.backend import GenerationBackend
from serving.gateway.api.body import parse_body
from serving.gateway.api.forms.chat import CHAT, COMPLETIONS
from serving.gateway.api.forms.form import WireForm
from serving.gateway.api.generation_response import GenerationResponse
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.hints.desk import HintDesk
from serving.gateway.api.hints.orders import CUT, chat_hints
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.media import MediaNotes
from serving.gateway.api.messages.schema import CountTokensRequest
from serving.gateway.api.openapi import BODY_ERRORS, OpenApiKind, answers, event_stream, text_content
from serving.gateway.api.prompts import Rendered, encode_prompt, encode_text, prepare_chat, render_chat, require_fit
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.api.schema import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.api.text_desk import TextDesk
from serving.gateway.api.tokens.schema import GenerateTokensRequest
from serving.gateway.api.tools.tool_fields import ignored_in_tools
from serving.gateway.api.translate import GenerationOrder, chat_order, completion_order, prepare_chat_order
from serving.telemetry.exposition import OPENMETRICS_TYPE, wants_openmetrics
from serving.telemetry.metrics import GatewayMetrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_CONTENT = {**text_content("text/plain"), **text_content("application/openmetrics-text")}

_GENERATION_ERRORS = (404, 429, 503, *BODY_ERRORS)
GENERATION_EXCHANGES = tuple(
    ("POST", f"/v1/{path}", status)
    for path in ("chat/completions", "completions")
    for status in sorted({200, 401, 499, 500, *_GENERATION_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""

Body = TypeVar("Body", bound=GenerationRequest | ResponsesRequest | CountTokensRequest | GenerateTokensRequest)
Conversation = TypeVar("Conversation", ChatCompletionRequest, TokenizeRequest)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RouteServices:
    """Services shared by the routes."""

    backend: GenerationBackend
    model: ServedModel
    settings: ApiSettings
    metrics: GatewayMetrics
    weights: TenantWeights
    texts: TextDesk
    running: RunningRequests
    hints: HintDesk

    async def chat(self, request: Request) -> Response:
        """Read a chat request and respond to it.

        Raises: RequestError subclasses.
        """
        arrived = self.metrics.clock()
        body, order = await self.chat_order(request)
        order = await self._hinted(request, body, body.messages, order)
        return self.answer(order, CHAT, arrived)

    async def complete(self, request: Request) -> Response:
        """Read a completion request and respond to it.

        Raises: RequestError subclasses.
        """
        arrived = self.metrics.clock()
        body, order = await self.completion_order(request)
        order = await self._hinted(request, body, (), order)
        return self.answer(order, COMPLETIONS, arrived)

    async def _hinted(
        self,
        request: Request,
        body: ChatCompletionRequest | CompletionRequest,
        messages: Sequence[ChatMessage],
        order: GenerationOrder,
    ) -> GenerationOrder:
        """The order with the claim of its request, if it makes one. Raises: RequestError subclasses."""

        def conversation(some: Sequence[ChatMessage]) -> Rendering:
            assert isinstance(body, ChatCompletionRequest), "only a chat has messages"
            cut = body if some is messages else body.model_copy(update=CUT)
            return prepare_chat_order(cut.model_copy(update={"messages": list(some)}), self.model, self.settings)

        run = partial(self.translated, request)
        return await chat_hints(self.hints, self.model, request, body, messages, conversation, order, run)

    async def chat_order(self, request: Request) -> tuple[ChatCompletionRequest, GenerationOrder]:
        """Read a chat request and translate it.

        Raises: RequestError subclasses.
        """
        tenant = self.weights.apply(tenant_of(request))
        body = await self.read(request, ChatCompletionRequest)
        request.state.ignored_fields += ignored_in_tools(body)
        body = self.without_media(request, body)
        rendering = await self.translated(request, lambda: prepare_chat_order(body, self.model, self.settings))
        text = await render_chat(self.model, rendering)
        order = await self.translated(
            request, lambda: chat_order(body, self.model, self.settings, tenant, text), long=wants_grammar(body)
        )
        return body, order

    def without_media(self, request: Request, body: Conversation) -> Conversation:
        """The body with notes in place of images, files and sound, which the warning header then names.

        Raises: InvalidRequestError if `[gateway] media` refuses them.
        """
        notes = MediaNotes(self.settings.media)
        messages = notes.in_chat(body.messages or ())
        request.state.ignored_fields += notes.replaced
        return body.model_copy(update={"messages": messages}) if notes.replaced else body

    async def completion_order(self, request: Request) -> tuple[CompletionRequest, GenerationOrder]:
        """Read a completion request and translate it.

        Raises: RequestError subclasses.
        """
        tenant = self.weights.apply(tenant_of(request))
        body = await self.read(request, CompletionRequest)
        order = await self.translated(
            request, lambda: completion_order(body, self.model, self.settings, tenant), long=wants_grammar(body)
        )
        return body, order

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Read a body, and check that its model is served.

        Raises: RequestError subclasses.
        """
        body = await parse_body(request, kind, self.settings.max_body_bytes)
        self.check_model(body.model)
        return body

    async def translated(self, request: Request, work: Callable[[], Result], *, long: bool = False) -> Result:
        """Run work on the text of a request whose body was read; on the event loop if it is short.

        Args:
            long: the work takes long even for a short body.
        Raises: OverloadedError, RequestError subclasses.
        """
        if long or request.state.body_size > self.settings.encode_in_thread_bytes:
            # Tokenizing a long prompt takes tens of milliseconds, and so does compiling a grammar; other streams must
            # not stall for that time.
            return await self.at_desk(request, work)
        return work()

    def answer(
        self,
        order: GenerationOrder,
        form: WireForm,
        arrived: float,
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """The response to a translated request; its sequences are submitted when the server sends the response.

        Args:
            before_end: see `GenerationResponse`.
        """
        if order.hints is not None and order.hints.at_end:
            before_end = self.hints.at_end(order.namespace, order.hints, before_end)
        called = self.hints.called(order.namespace, order.hints)
        tokenizer, metrics, settings = self.model.tokenizer, self.metrics, self.settings
        return GenerationResponse(
            order, form, self.backend, tokenizer, metrics, settings, arrived, before_end, self.running, called
        )

    async def at_desk(self, request: Request, work: Callable[[], Result]) -> Result:
        """Run work on the text of a request whose body was read, when its key's turn comes in the queue.

        Raises: OverloadedError, RequestError subclasses.
        """
        tenant = self.weights.apply(tenant_of(request))
        return await self.texts.run(tenant, request.state.body_size, work)

    def check_model(self, name: str | None) -> None:
        """Require that the model name is served, or absent.

        Raises: ModelNotFoundError.
        """
        if name is not None and name not in self.model.names:
            raise ModelNotFoundError(
                f"the model '{name[:200]}' is not served here; GET /v1/models lists the served models", param="model"
            )

    def model_card(self, name: str) -> dict[str, Any]:
        """A model's entry in /v1/models."""
        return {
            "id": name,
            "object": "model",
            "created": self.model.created,
            "owned_by": "cloudmatrix",
            "root": self.model.root,
            "parent": None,
            "max_model_len": self.model.max_model_len,
            "permission": [],
        }


def json_response(value: object) -> Response:
    """A 200 with a JSON body."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def request_body(kind: OpenApiKind) -> dict[str, Any]:
    """OpenAPI's description of a body that the route itself reads."""
    schema = {"$ref": f"#/components/schemas/{kind}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def probe_router(endpoint: RouteServices) -> APIRouter:
    """Routes for load balancers, orchestrators and scrapers."""
    router = APIRouter(tags=["probes"])

    @router.get("/health", response_class=Response, responses=answers(None))
    @router.get("/ping", response_class=Response, responses=answers(None))
    @router.post("/ping", response_class=Response, responses=answers(None))
    async def health() -> Response:
        """The process is alive."""
        return Response()

    @router.get("/-/healthz", response_class=Response, responses=answers(None, content=text_content("text/plain")))
    async def takes_requests() -> Response:
        """`success` while new requests are accepted: KubeRay's probe of each pod, at the path of Ray Serve's proxy."""
        return Response("success", media_type="text/plain")

    @router.get("/ready", responses=answers(Ready, 503))
    async def ready() -> Response:
        """Whether a request sent now would be served."""
        if not endpoint.backend.ready():
            raise UnavailableError("no instance can serve yet; try again shortly")
        return json_response({"status": "ready"})

    @router.get("/version", responses=answers(Version))
    async def version() -> Response:
        """The server's version."""
        return json_response({"version": endpoint.settings.version})

    @router.get("/metrics", response_class=Response, responses=answers(None, content=METRICS_CONTENT))
    async def metrics(request: Request, scope: Literal["all", "gateway"] = "all") -> Response:
        """Prometheus text, without a key. Series with tenants' names need an admin key, or an open server.

        `scope=gateway` is for scrapers that discover each gateway, such as a PodMonitor: a page then has the series of
        its own gateway, and those of instances are on one gateway's page only. With a suitable `Accept` the page is
        OpenMetrics, with exemplars of first tokens for traced requests.
        """
        render = endpoint.metrics.render_own if scope == "gateway" else endpoint.metrics.render_all
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        text = await render(namespaces=tenant_of(request).admin, openmetrics=openmetrics)
        return Response(text, headers={"Content-Type": OPENMETRICS_TYPE if openmetrics else METRICS_TYPE})

    @router.get("/load", responses=answers(Load))
    async def load() -> Response:
        """Requests in flight, in all gateways."""
        return json_response({"server_load": await endpoint.metrics.load()})

    return router


def info_router(endpoint: RouteServices) -> APIRouter:
    """Models and tokens."""
    router = APIRouter(tags=["information"])
    model, settings = endpoint.model, endpoint.settings

    @router.get("/v1/models", responses=answers(ModelList))
    async def models() -> Response:
        """All served names."""
        return json_response({"object": "list", "data": [endpoint.model_card(name) for name in model.names]})

    @router.get("/v1/models/{name:path}", responses=answers(ModelCard, 404))
    async def one_model(name: str) -> Response:
        """One served name; names may contain slashes."""
        endpoint.check_model(name)
        return json_response(endpoint.model_card(name))

    @router.post(
        "/tokenize", openapi_extra=request_body("TokenizeRequest"), responses=answers(Tokenized, 404, 429, *BODY_ERRORS)
    )
    async def tokenize(request: Request) -> Response:
        """Token ids of a prompt or a conversation."""
        body = await parse_body(request, TokenizeRequest, settings.max_body_bytes)
        endpoint.check_model(body.model)
        text = await _text_of(request, body, endpoint)
        ids, strings = await endpoint.at_desk(request, lambda: _tokenize(body, text, model))
        answer = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": strings}
        return json_response(answer)

    @router.post(
        "/detokenize",
        openapi_extra=request_body("DetokenizeRequest"),
        responses=answers(Detokenized, 404, 429, *BODY_ERRORS),
    )
    async def detokenize(request: Request) -> Response:
        """Text of token ids, with special tokens."""
        body = await parse_body(request, DetokenizeRequest, settings.max_body_bytes)
        endpoint.check_model(body.model)
        text = await endpoint.at_desk(request, lambda: _detokenize(body, model))
        return json_response({"prompt": text})

    return router


def generation_router(endpoint: RouteServices) -> APIRouter:
    """Chat and completions."""
    router = APIRouter(prefix="/v1", tags=["generation"])

    @router.post(
        "/chat/completions",
        openapi_extra=request_body("ChatCompletionRequest"),
        responses=answers(ChatCompletion, *_GENERATION_ERRORS, content=event_stream(ChatCompletionChunk)),
    )
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation."""
        return await endpoint.chat(request)

    @router.post(
        "/completions",
        openapi_extra=request_body("CompletionRequest"),
        responses=answers(Completion, *_GENERATION_ERRORS, content=event_stream(CompletionChunk)),
    )
    async def completions(request: Request) -> Response:
        """Continue a text."""
        return await endpoint.complete(request)

    return router


async def _text_of(request: Request, body: TokenizeRequest, endpoint: RouteServices) -> str | Rendered:
    """The text or conversation to tokenize: exactly one of `prompt` and `messages` must be set."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either 'prompt' or 'messages'", param="prompt", code="invalid_value")
    messages, model = endpoint.without_media(request, body).messages, endpoint.model
    if messages is None:
        return body.prompt or ""
    rendering = await endpoint.at_desk(request, lambda: prepare_chat(model, messages, body))
    return await render_chat(model, rendering)


def _tokenize(body: TokenizeRequest, text: str | Rendered, model: ServedModel) -> tuple[list[int], list[str] | None]:
    """Ids, and their spelling in the vocabulary if requested. By default, texts get special tokens."""
    special = body.add_special_tokens is not False if isinstance(text, str) else bool(body.add_special_tokens)
    require_fit(model, text, "prompt" if isinstance(text, str) else "messages")
    ids = encode_text(model, text, add_special_tokens=special)
    return ids, [model.tokenizer.token_string(i) for i in ids] if body.return_token_strs else None


def _detokenize(body: DetokenizeRequest, model: ServedModel) -> str:
    if not body.tokens:
        return ""
    if len(body.tokens) > model.max_model_len:
        raise ContextLengthError(
            f"'tokens' holds {len(body.tokens)} tokens; this model's maximum context length is {model.max_model_len}",
            param="tokens",
        )
    encode_prompt(model, body.tokens, add_special_tokens=False, param="tokens")  # checks the ids
    return model.tokenizer.decode(body.tokens, skip_special_tokens=False)

"""Routes with tokens as input and output, for requests from a renderer, and the renderer itself."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.forms.tokens import TOKENS
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.openapi import BODY_ERRORS, answers, event_stream
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.tenant import tenant_of
from serving.gateway.api.tokens_answers import GeneratedTokens, GeneratedTokensChunk, RenderedPrompts, RenderedRequest
from serving.gateway.api.tokens_schema import GenerateTokensRequest
from serving.gateway.api.tokens_translate import as_completion, rendered_requests, tokens_order

_ERRORS = (404, 429, 503, *BODY_ERRORS)
_RENDER_ERRORS = (404, 429, *BODY_ERRORS)
TOKENS_EXCHANGES = tuple(
    ("POST", "/inference/v1/generate", status) for status in sorted({200, 401, 499, 500, *_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""


def tokens_router(endpoint: RouteServices) -> APIRouter:
    """Routes of generation in tokens, and of rendering."""
    router = APIRouter(tags=["tokens"])
    model, settings = endpoint.model, endpoint.settings

    @router.post(
        "/inference/v1/generate",
        openapi_extra=request_body("GenerateTokensRequest"),
        responses=answers(GeneratedTokens, *_ERRORS, content=event_stream(GeneratedTokensChunk)),
    )
    async def generate(request: Request) -> Response:
        """Continue a prompt of tokens with tokens."""
        arrived, tenant = endpoint.metrics.clock(), endpoint.weights.apply(tenant_of(request))
        body = await endpoint.read(request, GenerateTokensRequest)
        completion = as_completion(body)
        order = await endpoint.translated(
            request,
            lambda: tokens_order(body, completion, model, settings, tenant),
            long=wants_grammar(completion),
        )
        return endpoint.answer(order, TOKENS, arrived)

    @router.post(
        "/v1/chat/completions/render",
        openapi_extra=request_body("ChatCompletionRequest"),
        responses=answers(RenderedRequest, *_RENDER_ERRORS),
    )
    async def render_chat(request: Request) -> Response:
        """Render a chat as the equivalent request for /inference/v1/generate, without generating output."""
        body, order = await endpoint.chat_order(request)
        return json_response(rendered_requests(order, body, model)[0])

    @router.post(
        "/v1/completions/render",
        openapi_extra=request_body("CompletionRequest"),
        responses=answers(RenderedPrompts, *_RENDER_ERRORS),
    )
    async def render_completion(request: Request) -> Response:
        """Render a completion as requests for /inference/v1/generate, one per prompt, without generating output."""
        body, order = await endpoint.completion_order(request)
        return json_response(rendered_requests(order, body, model))

    @router.get("/tokenizer_info", responses=answers(None))
    async def tokenizer_info() -> Response:
        """The tokenizer's own configuration, with the chat template."""
        return json_response(endpoint.model.tokenizer_info)

    return router

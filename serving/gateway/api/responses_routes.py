"""The routes of OpenAI's Responses API."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.errors import RouteError
from serving.gateway.api.forms.response_object import ResponseFrame
from serving.gateway.api.forms.responses import item_stem, responses_form
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.openapi import BODY_ERRORS, answers, named_event_stream
from serving.gateway.api.prompts import Rendered, render_chat
from serving.gateway.api.responses_answers import RESPONSE_EVENTS, ResponseAnswer, ResponseInputTokens
from serving.gateway.api.responses_frame import repeated_fields
from serving.gateway.api.responses_items import kept_items
from serving.gateway.api.responses_kept import ResponseKeeper, ResponseShelf
from serving.gateway.api.responses_schema import ResponsesRequest
from serving.gateway.api.responses_translate import (
    SEALED_REASONING,
    ResponsesChat,
    as_chat,
    input_ids,
    responses_order,
)
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.tenant import tenant_of
from serving.gateway.api.tool_fields import ignored_in_tools
from serving.gateway.api.translate import prepare_chat_order

_ERRORS = (404, 429, 503, *BODY_ERRORS)
RESPONSES_EXCHANGES = tuple(
    ("POST", path, status)
    for path in ("/v1/responses", "/v1/responses/input_tokens")
    for status in sorted({200, 401, 499, 500, *_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""


def responses_router(endpoint: RouteServices, shelf: ResponseShelf) -> APIRouter:
    """The routes of responses.

    Args:
        shelf: store of responses.
    """
    router = APIRouter(prefix="/v1", tags=["generation"])
    model, settings = endpoint.model, endpoint.settings

    @router.post(
        "/responses",
        openapi_extra=request_body("ResponsesRequest"),
        responses=answers(ResponseAnswer, *_ERRORS, content=named_event_stream(*RESPONSE_EVENTS)),
    )
    async def responses(request: Request) -> Response:
        """Create a response to text or items, by OpenAI's Responses API."""
        arrived, tenant = endpoint.metrics.clock(), endpoint.weights.apply(tenant_of(request))
        body = await endpoint.read(request, ResponsesRequest)
        earlier, given, asked, text = await _conversation(endpoint, shelf, request, body)
        chat = asked.chat
        with asked.words.spoken():
            order = await endpoint.translated(
                request,
                lambda: responses_order(body, chat, model, settings, tenant, text),
                long=wants_grammar(chat),
            )
        stored = body.store is not False and shelf.keeps
        items = [*earlier, *kept_items(given, item_stem(order.response_id))] if stored else []
        keeper = ResponseKeeper(shelf, tenant.namespace, items)
        sealed = SEALED_REASONING in (body.include or ())
        frame = ResponseFrame(repeated_fields(body, stored=stored), sealed, keeper.take, asked.names)
        return endpoint.answer(order, responses_form(frame), arrived, keeper.keep if stored else None)

    @router.post(
        "/responses/input_tokens",
        openapi_extra=request_body("ResponsesRequest"),
        responses=answers(ResponseInputTokens, *_ERRORS),
    )
    async def input_tokens(request: Request) -> Response:
        """Count the tokens of a conversation, as the same request to /v1/responses would."""
        body = await endpoint.read(request, ResponsesRequest)
        _, _, asked, text = await _conversation(endpoint, shelf, request, body)
        with asked.words.spoken():
            ids = await endpoint.at_desk(request, lambda: input_ids(body, model, text))
        return json_response({"object": "response.input_tokens", "input_tokens": len(ids)})

    @router.post("/responses/compact", include_in_schema=False)
    async def compact(request: Request) -> Response:
        """Not supported. Without this route the path would match that of a response, with other methods."""
        raise RouteError(404, f"no route for {request.url.path}")

    return router


async def _conversation(
    endpoint: RouteServices, shelf: ResponseShelf, request: Request, body: ResponsesRequest
) -> tuple[list[dict[str, Any]], str | list[object], ResponsesChat, Rendered]:
    """Items of the conversation before a request, its input, the equivalent chat, and its prompt."""
    namespace, model, settings = tenant_of(request).namespace, endpoint.model, endpoint.settings
    earlier = []
    if (last := body.previous_response_id) is not None:
        earlier = (await shelf.find(namespace, last, "previous_response_id")).conversation
    given = await shelf.resolve(namespace, body.input)
    asked = await endpoint.translated(request, lambda: as_chat(body, given, earlier))
    with asked.words.spoken():
        ignored = ignored_in_tools(asked.chat)
        request.state.ignored_fields += [*asked.skipped, *map(asked.words.word, ignored)]
        rendering = await endpoint.translated(request, lambda: prepare_chat_order(asked.chat, model, settings))
        return earlier, given, asked, await render_chat(model, rendering)

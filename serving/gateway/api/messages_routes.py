"""The routes of Anthropic's Messages API."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.forms.messages import MESSAGES
from serving.gateway.api.messages_answers import MESSAGE_EVENTS, CountedTokens, MessageAnswer, MessagesErrorAnswer
from serving.gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from serving.gateway.api.messages_translate import (
    messages_chat,
    messages_order,
    prepare_messages,
    prompt_ids,
    wants_long_work,
)
from serving.gateway.api.openapi import BODY_ERRORS, answers, named_event_stream
from serving.gateway.api.prompts import render_chat
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.tenant import tenant_of

_ERRORS = (404, 503, 529, *BODY_ERRORS)
MESSAGES_EXCHANGES = tuple(
    ("POST", path, status)
    for path in ("/v1/messages", "/v1/messages/count_tokens")
    for status in sorted({200, 401, 499, 500, *_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""


def messages_router(endpoint: RouteServices) -> APIRouter:
    """Routes of messages, and of counting their tokens."""
    router = APIRouter(prefix="/v1", tags=["generation"])
    model, settings = endpoint.model, endpoint.settings

    @router.post(
        "/messages",
        openapi_extra=request_body("MessagesRequest"),
        responses=answers(
            MessageAnswer, *_ERRORS, content=named_event_stream(*MESSAGE_EVENTS), error=MessagesErrorAnswer
        ),
    )
    async def messages(request: Request) -> Response:
        """Continue a conversation, by Anthropic's Messages API."""
        arrived, tenant = endpoint.metrics.clock(), endpoint.weights.apply(tenant_of(request))
        body = await endpoint.read(request, MessagesRequest)
        asked = await endpoint.translated(request, lambda: messages_chat(body))
        request.state.ignored_fields += asked.ignored
        rendering = await endpoint.translated(request, lambda: prepare_messages(body, asked, model))
        text = await render_chat(model, rendering)
        order = await endpoint.translated(
            request, lambda: messages_order(body, asked, model, settings, tenant, text), long=wants_long_work(body)
        )
        return endpoint.answer(order, MESSAGES, arrived)

    @router.post(
        "/messages/count_tokens",
        openapi_extra=request_body("CountTokensRequest"),
        responses=answers(CountedTokens, *_ERRORS, error=MessagesErrorAnswer),
    )
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation, as the same request to /v1/messages would."""
        body = await endpoint.read(request, CountTokensRequest)
        asked = await endpoint.at_desk(request, lambda: messages_chat(body))
        request.state.ignored_fields += asked.ignored
        rendering = await endpoint.at_desk(request, lambda: prepare_messages(body, asked, model))
        text = await render_chat(model, rendering)
        ids = await endpoint.at_desk(request, lambda: prompt_ids(model, text))
        return json_response({"input_tokens": len(ids)})

    return router

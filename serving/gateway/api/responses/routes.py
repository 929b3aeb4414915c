"""The routes of OpenAI's Responses API, those of kept responses included."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidRequestError
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers, named_event_stream
from serving.gateway.api.prompts import render_chat
from serving.gateway.api.responses.form import ResponseFrame, item_stem, responses_form
from serving.gateway.api.responses.hinted import ResponsesConversation, hinted_response
from serving.gateway.api.responses.items import kept_items
from serving.gateway.api.responses.kept import PATH_PARAM, ResponseKeeper, ResponseShelf
from serving.gateway.api.responses.schema import (
    RESPONSE_EVENTS,
    ResponseAnswer,
    ResponseDeleted,
    ResponseInputItems,
    ResponseInputTokens,
    ResponsesRequest,
)
from serving.gateway.api.responses.translate import SEALED_REASONING, as_chat, input_ids, responses_order
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.tools.tool_fields import ignored_in_tools
from serving.gateway.api.translate import prepare_chat_order

# The routes of OpenAI's Responses API.

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
        found = await _conversation(endpoint, shelf, request, body)
        asked, text = found.asked, found.text
        with asked.words.spoken():
            order = await endpoint.translated(
                request,
                lambda: responses_order(body, asked, model, settings, tenant, text),
                long=wants_grammar(asked.chat),
            )
        order = await hinted_response(endpoint, request, body, found, order)
        stored = body.store is not False and shelf.keeps
        items = [*found.earlier, *kept_items(found.given, item_stem(order.response_id))] if stored else []
        keeper = ResponseKeeper(shelf, tenant.namespace, items, found.root)
        sealed = SEALED_REASONING in (body.include or ())
        frame = ResponseFrame(repeated_fields(body, stored=stored), sealed, keeper.take, asked.names, asked.compacts)
        return endpoint.answer(order, responses_form(frame), arrived, keeper.keep if stored else None)

    @router.post(
        "/responses/input_tokens",
        openapi_extra=request_body("ResponsesRequest"),
        responses=answers(ResponseInputTokens, *_ERRORS),
    )
    async def input_tokens(request: Request) -> Response:
        """Count the tokens of a conversation, as the same request to /v1/responses would."""
        body = await endpoint.read(request, ResponsesRequest)
        found = await _conversation(endpoint, shelf, request, body)
        with found.asked.words.spoken():
            ids = await endpoint.at_desk(request, lambda: input_ids(body, model, found.text))
        return json_response({"object": "response.input_tokens", "input_tokens": len(ids)})

    @router.post("/responses/compact", include_in_schema=False)
    async def compact(request: Request) -> Response:
        """Not supported. Without this route the path would match that of a response, with other methods."""
        raise RouteError(404, f"no route for {request.url.path}")

    return router


async def _conversation(
    endpoint: RouteServices, shelf: ResponseShelf, request: Request, body: ResponsesRequest
) -> ResponsesConversation:
    """The conversation of a request, with what is kept of it."""
    namespace, model, settings = tenant_of(request).namespace, endpoint.model, endpoint.settings
    root, earlier = "", []
    if (last := body.previous_response_id) is not None:
        kept = await shelf.find(namespace, last, "previous_response_id")
        root, earlier = kept.first, kept.conversation
    given = await shelf.resolve(namespace, body.input)
    asked = await endpoint.translated(request, lambda: as_chat(body, given, earlier))
    with asked.words.spoken():
        ignored = ignored_in_tools(asked.chat)
        request.state.ignored_fields += [*asked.skipped, *map(asked.words.word, ignored)]
        rendering = await endpoint.translated(request, lambda: prepare_chat_order(asked.chat, model, settings))
        return ResponsesConversation(root, earlier, given, asked, await render_chat(model, rendering))


# The routes of stored responses: read one, list its input items, delete it.

_FEWEST, _USUAL, _MOST = 1, 20, 100


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_LISTING = {
    "parameters": [
        _query("limit", {"type": "integer", "minimum": _FEWEST, "maximum": _MOST, "default": _USUAL}),
        _query("order", {"enum": ["asc", "desc"], "default": "desc"}),
        _query("after", {"type": "string"}),
    ]
}


def kept_responses_router(shelf: ResponseShelf) -> APIRouter:
    """Routes of stored responses, each accessible to its own namespace only."""
    router = APIRouter(prefix="/v1/responses", tags=["generation"])

    @router.get("/{response_id}", responses=answers(ResponseAnswer, 404))
    async def read(request: Request, response_id: str) -> Response:
        """A stored response."""
        if request.query_params.get("stream") in ("true", "True", "1"):
            raise _wrong("stream", "is not supported: a stored response is only returned as a whole")
        kept = await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)
        return json_response(kept.response)

    @router.delete("/{response_id}", responses=answers(ResponseDeleted, 404))
    async def delete(request: Request, response_id: str) -> Response:
        """Delete a stored response."""
        await shelf.delete(tenant_of(request).namespace, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/{response_id}/cancel", responses=answers(None, 400, 404))
    async def cancel(request: Request, response_id: str) -> Response:
        """Always refused: stored responses are complete, and a running one ends when its client disconnects."""
        kept = await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)
        status = kept.response["status"]
        raise _wrong(PATH_PARAM, f"names a response that is {status}; only a background response can be cancelled")

    @router.get("/{response_id}/input_items", openapi_extra=_LISTING, responses=answers(ResponseInputItems, 400, 404))
    async def input_items(request: Request, response_id: str) -> Response:
        """Input items of a response, including those of the conversation before it."""
        limit, newest_first = _limit(request), _newest_first(request)
        items = (await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)).items
        items = items[::-1] if newest_first else items
        if (after := request.query_params.get("after")) is not None:
            place = next((i for i, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise _wrong("after", "is not an item of this response")
            items = items[place + 1 :]
        page = items[:limit]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > limit})

    return router


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(_USUAL))
    if not (text.isascii() and text.isdigit() and len(text) < 5 and _FEWEST <= int(text) <= _MOST):
        raise _wrong("limit", f"must be a number from {_FEWEST} to {_MOST}")
    return int(text)


def _newest_first(request: Request) -> bool:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _wrong("order", "must be asc or desc")
    return order == "desc"


def _wrong(param: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{param}' {words}", param=param, code="invalid_value")


# Parts of a response object that repeat the request.


def repeated_fields(body: ResponsesRequest, *, stored: bool) -> dict[str, Any]:
    """Fields of a response that its request determines, with OpenAI's defaults for those that it omits. Fields that
    OpenAI's schema requires to be texts are omitted if the request has none.

    Args:
        stored: whether the response can be requested later.
    """
    text, reasoning = body.text, body.reasoning
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "store": stored,
        "text": {"format": (None if text is None else text.format) or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        **{name: text for name in ("prompt_cache_key", "user") if (text := getattr(body, name)) is not None},
    }

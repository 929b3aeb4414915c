"""The routes of OpenAI's Responses API, those of kept responses included."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.admin.cancel_routes import Cancels
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.http.paging import page_of, page_parameters, query_parameter, wrong_parameter
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers, named_event_stream
from serving.gateway.api.prompts import render_chat
from serving.gateway.api.responses.background_routes import (
    StoredEvents,
    accepted,
    check_background,
    first_event,
    streams,
    with_seed,
)
from serving.gateway.api.responses.background_runs import BackgroundRuns, frame_of
from serving.gateway.api.responses.compaction import said_by_user, triggered
from serving.gateway.api.responses.event_schema import RESPONSE_EVENTS
from serving.gateway.api.responses.form import compaction_form, item_stem, responses_form
from serving.gateway.api.responses.hinted import ResponsesConversation, hinted_response
from serving.gateway.api.responses.items import kept_items
from serving.gateway.api.responses.kept import (
    PATH_PARAM,
    KeptResponse,
    ResponseKeeper,
    ResponseNotFoundError,
    ResponseShelf,
)
from serving.gateway.api.responses.schema import (
    CompactedResponse,
    ResponseAnswer,
    ResponseDeleted,
    ResponseInputItems,
    ResponseInputTokens,
    ResponsesRequest,
)
from serving.gateway.api.responses.translate import as_chat, input_ids, responses_order
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tools.tool_fields import ignored_in_tools
from serving.gateway.api.translate import GenerationOrder, prepare_chat_order

# The routes of OpenAI's Responses API.

_ERRORS = (404, 429, 503, *BODY_ERRORS)
RESPONSES_EXCHANGES = tuple(
    ("POST", path, status)
    for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact")
    for status in sorted({200, 401, 499, 500, *_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""


def responses_router(endpoint: RouteServices, shelf: ResponseShelf, runs: BackgroundRuns) -> APIRouter:
    """The routes of responses.

    Args:
        shelf: store of responses.
        runs: background responses.
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
        if body.background:
            check_background(body, shelf, runs)
            body = with_seed(body)
        found = await _conversation(endpoint, shelf, request, body)
        order = await _order(endpoint, request, body, found)
        stored = body.store is not False and shelf.keeps
        if body.background:
            frame = frame_of(repeated_fields(body, stored=True), body, found.asked)
            one = accepted(request, body, (found.earlier, found.given), order, frame, tenant, settings)
            response = await runs.start(one, arrived)
            if not body.stream:
                return json_response(response)
            return StoredEvents(runs.events(tenant.namespace, response["id"], 0), settings.request_timeout_s)
        items = [*found.earlier, *kept_items(found.given, item_stem(order.response_id))] if stored else []
        keeper = ResponseKeeper(shelf, tenant.namespace, items, found.root)
        frame = frame_of(repeated_fields(body, stored=stored), body, found.asked, keeper.take)
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

    return router


def compaction_router(endpoint: RouteServices, shelf: ResponseShelf) -> APIRouter:
    """The route of compactions."""
    router = APIRouter(prefix="/v1", tags=["generation"])

    @router.post(
        "/responses/compact",
        openapi_extra=request_body("ResponsesRequest"),
        responses=answers(CompactedResponse, *_ERRORS),
    )
    async def compact(request: Request) -> Response:
        """Summarise a conversation: its user messages, and one `compaction` item that replaces the rest.

        The same as a `compaction_trigger` at the end of the input, without a stream; nothing is stored.
        """
        arrived = endpoint.metrics.clock()
        body = await endpoint.read(request, ResponsesRequest)
        for name in ("stream", "background"):
            if getattr(body, name):
                raise wrong_parameter(name, "is not supported for a compaction, which is answered as a whole")
        body = body.model_copy(update={"input": triggered(body.input)})
        found = await _conversation(endpoint, shelf, request, body)
        order = await _order(endpoint, request, body, found)
        kept = kept_items(said_by_user([*found.earlier, *found.given]), item_stem(order.response_id))
        return endpoint.answer(order, compaction_form(frame_of({}, body, found.asked), kept), arrived)

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
    asked = await endpoint.translated(request, lambda: as_chat(body, given, earlier, settings.media))
    with asked.words.spoken():
        ignored = ignored_in_tools(asked.chat)
        request.state.ignored_fields += [*asked.skipped, *map(asked.words.word, ignored)]
        if body.text is not None and body.text.verbosity is not None and not _reads_verbosity(model):
            request.state.ignored_fields.append("text.verbosity")
        rendering = await endpoint.translated(request, lambda: prepare_chat_order(asked.chat, model, settings))
        return ResponsesConversation(root, earlier, given, asked, await render_chat(model, rendering))


def _reads_verbosity(model: ServedModel) -> bool:
    return model.chat_template is not None and model.chat_template.reads("verbosity")


async def _order(
    endpoint: RouteServices, request: Request, body: ResponsesRequest, found: ResponsesConversation
) -> GenerationOrder:
    """The order for a request with its prompt, and with its claim if it makes one."""
    model, settings, tenant = endpoint.model, endpoint.settings, endpoint.weights.apply(tenant_of(request))
    asked, text = found.asked, found.text
    with asked.words.spoken():
        order = await endpoint.translated(
            request,
            lambda: responses_order(body, asked, model, settings, tenant, text),
            long=wants_grammar(asked.chat),
        )
    return await hinted_response(endpoint, request, body, found, order)


# The routes of stored responses: read one, list its input items, delete it.

_USUAL, _MOST = 20, 100
_LISTING = page_parameters(_USUAL, _MOST)
_READING = {
    "parameters": [
        query_parameter("stream", {"type": "boolean", "default": False}),
        query_parameter("starting_after", {"type": "integer", "minimum": 0}),
    ]
}
CANCEL_S = 2.0
"""How long a cancelled response is waited for; it ends anyway."""


def kept_responses_router(shelf: ResponseShelf, runs: BackgroundRuns, stream_s: float) -> APIRouter:
    """Routes of stored responses, each accessible to its own namespace only.

    Args:
        stream_s: longest stream of events.
    """
    router = APIRouter(prefix="/v1/responses", tags=["generation"])

    events = named_event_stream(*RESPONSE_EVENTS)

    @router.get(
        "/{response_id}", openapi_extra=_READING, responses=answers(ResponseAnswer, 400, 404, 503, content=events)
    )
    async def read(request: Request, response_id: str) -> Response:
        """A stored response. A background one also as a stream of its events, also while it is generated.

        With `stream=true`, `starting_after` is the number of the last event that the client has.
        """
        namespace = tenant_of(request).namespace
        if not streams(request):
            if "starting_after" in request.query_params:
                raise wrong_parameter("starting_after", "needs stream=true")
            return json_response((await _found(shelf, runs, namespace, response_id)).response)
        if (item := await runs.state(namespace, response_id)) is None:
            await shelf.find(namespace, response_id, PATH_PARAM)
            raise wrong_parameter(
                "stream", "needs a background response whose events are stored; this one is read as a whole"
            )
        start = first_event(request, item.records - 1)
        return StoredEvents(runs.events(namespace, response_id, start), stream_s)

    @router.get("/{response_id}/input_items", openapi_extra=_LISTING, responses=answers(ResponseInputItems, 400, 404))
    async def input_items(request: Request, response_id: str) -> Response:
        """Input items of a response, including those of the conversation before it."""
        items = (await _found(shelf, runs, tenant_of(request).namespace, response_id)).items
        return json_response(page_of(request, items, _USUAL, _MOST))

    return router


def ended_responses_router(shelf: ResponseShelf, runs: BackgroundRuns, cancels: Cancels) -> APIRouter:
    """Routes that delete or cancel a response, each accessible to its own namespace only."""
    router = APIRouter(prefix="/v1/responses", tags=["generation"])

    @router.delete("/{response_id}", responses=answers(ResponseDeleted, 404, 503))
    async def delete(request: Request, response_id: str) -> Response:
        """Delete a stored response. A background one also ends."""
        namespace = tenant_of(request).namespace
        ended = await runs.delete(namespace, response_id)
        try:
            await shelf.delete(namespace, response_id)
        except ResponseNotFoundError:
            if not ended:
                raise
        if ended:
            await cancels.cancel((response_id,), namespace)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/{response_id}/cancel", responses=answers(ResponseAnswer, 400, 404, 503))
    async def cancel(request: Request, response_id: str) -> Response:
        """Cancel a background response. Once more, it returns the same; one that has ended otherwise is a 400."""
        namespace = tenant_of(request).namespace
        response = (await _found(shelf, runs, namespace, response_id)).response
        if await runs.cancel(namespace, response_id):
            await cancels.cancel((response_id,), namespace)
            await runs.ended(namespace, response_id, CANCEL_S)
            response = (await _found(shelf, runs, namespace, response_id)).response
        if (status := response["status"]) != "cancelled":
            words = f"names a response that is {status}; only a background response in progress can be cancelled"
            raise wrong_parameter(PATH_PARAM, words)
        return json_response(response)

    return router


async def _found(shelf: ResponseShelf, runs: BackgroundRuns, namespace: str, response_id: str) -> KeptResponse:
    """A response, in its present state if it is a background one."""
    return await runs.find(namespace, response_id) or await shelf.find(namespace, response_id, PATH_PARAM)


# Parts of a response object that repeat the request.


def repeated_fields(body: ResponsesRequest, *, stored: bool) -> dict[str, Any]:
    """Fields of a response that its request determines, with OpenAI's defaults for those that it omits. Fields that
    OpenAI's schema requires to be texts are omitted if the request has none.

    Args:
        stored: whether the response can be requested later.
    """
    text, reasoning = body.text, body.reasoning
    return {
        "background": bool(body.background),
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
        "text": {
            "format": (None if text is None else text.format) or {"type": "text"},
            **({} if text is None or text.verbosity is None else {"verbosity": text.verbosity}),
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        **{name: text for name in ("prompt_cache_key", "user") if (text := getattr(body, name)) is not None},
    }

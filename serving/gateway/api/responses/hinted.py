"""KV hints of a Responses request: OpenAI's fields, its breakpoints, and the session that a conversation is."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from serving.gateway.api.hints.breakpoints import MOST_BREAKPOINTS, Beginning
from serving.gateway.api.hints.orders import (
    CUT,
    Asked,
    Kept,
    concerned,
    hinted_order,
    marked_places,
    part_text,
    retention,
)
from serving.gateway.api.hints.session_names import named_session
from serving.gateway.api.prompts import Rendered
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.responses.translate import ResponsesChat, as_chat
from serving.gateway.api.routes import RouteServices
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.api.translate import GenerationOrder, prepare_chat_order
from serving.gateway.core.kv_hints import SessionName


@dataclass(frozen=True, slots=True)
class ResponsesConversation:
    """The conversation of a request.

    Args:
        root: id of its first response; empty = there is none before this request.
        earlier: its items before the request.
        given: the request's input.
        asked: the equivalent chat.
        text: its prompt.
    """

    root: str
    earlier: list[dict[str, Any]]
    given: str | list[object]
    asked: ResponsesChat
    text: Rendered


async def hinted_response(
    endpoint: RouteServices,
    request: Request,
    body: ResponsesRequest,
    found: ResponsesConversation,
    order: GenerationOrder,
) -> GenerationOrder:
    """The order with the claim of its request, if it makes one. A summary ends the claims of what it replaces."""
    root, given, asked = found.root, found.given, found.asked
    if (headers := concerned(request, body)) is None and not root:
        return order
    session = named_session(headers or {}, body.prompt_cache_key, messages=asked.chat.messages)
    ttl = retention(body)
    kept = [] if ttl is None else [Kept(ttl)]
    if session is None and (root or kept or body.kv_hints is not None):
        session = SessionName(root or order.response_id)

    def rendering(end: tuple[int, int]) -> Rendering:
        last = given[end[0]]
        assert isinstance(last, dict), "it has parts"
        cut = [*given[: end[0]], {**last, "content": last["content"][: end[1] + 1]}]
        chat = as_chat(body, cut, found.earlier).chat.model_copy(update=CUT)
        return prepare_chat_order(chat, endpoint.model, endpoint.settings)

    if body.prompt_cache_options is not None and not asked.compacts:
        run, places = partial(endpoint.translated, request), marked_places(given)[-MOST_BREAKPOINTS + len(kept) :]
        shorter = [Beginning(partial(rendering, at), part_text(_content(given, at), at)) for at in places]
        lengths = await endpoint.hints.lengths.measure(run, found.text, order.prompts[0], shorter)
        kept += [Kept("30m", length) for length in lengths if length]
    told = Asked(session, () if asked.compacts else kept, evicts=asked.compacts)
    return await hinted_order(endpoint.hints, request, body, told, order)


def _content(given: str | list[object], place: tuple[int, int]) -> object:
    item = given[place[0]]
    return item.get("content") if isinstance(item, dict) else None

"""The routes of Anthropic's Messages API, and what a request means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.config.gateway import Media
from serving.errors import ContextLengthError, InvalidRequestError
from serving.gateway.api.body import parse_body
from serving.gateway.api.hints.breakpoints import Beginning
from serving.gateway.api.hints.orders import CUT, Asked, Kept, hinted_order
from serving.gateway.api.hints.schema import CacheTouched, CacheTouchRequest
from serving.gateway.api.hints.session_names import named_session, session_headers
from serving.gateway.api.http.errors import FieldWords, RouteError
from serving.gateway.api.http.tenant import Tenant, tenant_of
from serving.gateway.api.media import MediaNotes
from serving.gateway.api.messages.blocks import MessageBlocks, referenced_tools, system_text
from serving.gateway.api.messages.cache_control import cache_control
from serving.gateway.api.messages.context_edits import cleared
from serving.gateway.api.messages.form import messages_form
from serving.gateway.api.messages.schema import (
    MESSAGE_EVENTS,
    CountedTokens,
    CountTokensRequest,
    MessageAnswer,
    MessagesErrorAnswer,
    MessagesRequest,
)
from serving.gateway.api.messages.tools import messages_tools
from serving.gateway.api.openapi import BODY_ERRORS, answers, named_event_stream
from serving.gateway.api.output_plan import can_reason
from serving.gateway.api.prompts import Rendered, encode_prompt, prepare_chat, render_chat
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.sampling import Fields
from serving.gateway.api.schema import ChatCompletionRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.api.tools.tool_fields import ignored_in_tools
from serving.gateway.api.translate import GenerationOrder, build_order
from serving.gateway.api.unknown_fields import printable
from serving.gateway.core.kv_hints import unnamed_session
from serving.values.kv_hints import HintStatus

# The routes of Anthropic's Messages API.

_ERRORS = (404, 503, 529, *BODY_ERRORS)
_TOUCH_BYTES = 4096
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
        asked = await endpoint.translated(request, lambda: messages_chat(body, settings.media))
        request.state.ignored_fields += asked.ignored
        asked, text, edits = await _edited(endpoint, request, body, asked)
        order = await endpoint.translated(
            request, lambda: messages_order(body, asked, model, settings, tenant, text), long=wants_long_work(body)
        )
        order = await _hinted(endpoint, request, body, text, order)
        return endpoint.answer(order, messages_form(edits), arrived)

    _add_touch(router, endpoint)

    @router.post(
        "/messages/count_tokens",
        openapi_extra=request_body("CountTokensRequest"),
        responses=answers(CountedTokens, *_ERRORS, error=MessagesErrorAnswer),
    )
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation, as the same request to /v1/messages would."""
        body = await endpoint.read(request, CountTokensRequest)
        asked = await endpoint.at_desk(request, lambda: messages_chat(body, settings.media))
        request.state.ignored_fields += asked.ignored
        asked, text, edits = await _edited(endpoint, request, body, asked)
        ids = await endpoint.at_desk(request, lambda: prompt_ids(model, text))
        counted: dict[str, Any] = {"input_tokens": len(ids)}
        if edits is not None:
            before = len(ids) + edits.get("cleared_input_tokens", 0)
            counted["context_management"] = {"original_input_tokens": before}
        return json_response(counted)

    return router


def _add_touch(router: APIRouter, endpoint: RouteServices) -> None:
    @router.post(
        "/messages/cache_touch",
        openapi_extra=request_body("CacheTouchRequest"),
        responses=answers(CacheTouched, 404, 529, *BODY_ERRORS, error=MessagesErrorAnswer),
    )
    async def cache_touch(request: Request) -> Response:
        """Renew what an earlier request keeps in the cache, without a request to the model.

        404 if that request has no claim: it never existed, has been forgotten, or is another tenant's, which the answer
        does not distinguish.
        """
        body = await parse_body(request, CacheTouchRequest, _TOUCH_BYTES)
        namespace = tenant_of(request).namespace
        named = endpoint.hints.recent.find(namespace, body.request_id)
        named = named or named_session(session_headers(request)) or unnamed_session(body.request_id)
        found = await endpoint.hints.touch(namespace, named)
        if found.status in (HintStatus.MISSING, HintStatus.REJECTED):
            raise RouteError(404, f"no request '{printable(body.request_id)}' with cached content is known")
        tokens = found.blocks * endpoint.hints.limits.block_tokens
        answer = {"type": "cache_touch", "request_id": body.request_id, "outcome": found.status.value, "tokens": tokens}
        return json_response(answer)


async def _hinted(
    endpoint: RouteServices, request: Request, body: MessagesRequest, text: Rendered, order: GenerationOrder
) -> GenerationOrder:
    """The order with the claim of its request, if it makes one. Raises: RequestError subclasses."""
    headers, desk = session_headers(request), endpoint.hints
    control = cache_control(body) if request.state.sought or body.evict_on_complete else None
    session = named_session(headers, metadata=body.metadata) if headers or body.metadata else None
    if control is None and session is None and body.kv_hints is None:
        return order
    if control is None:
        return await hinted_order(desk, request, body, Asked(session), order)
    request.state.ignored_fields += control.ignored

    def rendering(before: CountTokensRequest) -> Rendering:
        asked = messages_chat(before)
        if not asked.chat.continue_final_message:
            asked = replace(asked, chat=asked.chat.model_copy(update=CUT))
        return prepare_messages(before, asked, endpoint.model)

    shorter = [Beginning(partial(rendering, p.before), p.last) for p in control.breakpoints if p.before is not None]
    run = partial(endpoint.translated, request)
    lengths = iter(await desk.lengths.measure(run, text, order.prompts[0], shorter) if desk.servers else ())
    kept = [Kept(one.ttl, None if one.before is None else next(lengths, 0)) for one in control.breakpoints]
    asked = Asked(session, [one for one in kept if one.tokens != 0], control.evicts)
    return await hinted_order(desk, request, body, asked, order)


async def _edited(
    endpoint: RouteServices, request: Request, body: CountTokensRequest, asked: "MessagesChat"
) -> tuple["MessagesChat", Rendered, dict[str, Any] | None]:
    """A request's chat and prompt after its `context_management`, and the edit for `messages_form`."""
    model, managed = endpoint.model, body.context_management

    async def rendered(chat: MessagesChat) -> Rendered:
        return await render_chat(model, await endpoint.translated(request, lambda: prepare_messages(body, chat, model)))

    text = await rendered(asked)
    edit = None if managed is None else managed.clears_results
    if edit is None:
        return asked, text, None if managed is None else {}

    async def length(of: Rendered) -> int:
        return len(await endpoint.at_desk(request, lambda: prompt_ids(model, of, must_fit=False)))

    before = await length(text)
    found = cleared(asked.chat.messages, edit, before)
    if found is None:
        return asked, text, {}
    shorter = replace(asked, chat=asked.chat.model_copy(update={"messages": found.messages}))
    shorter_text = await rendered(shorter)
    saved = before - await length(shorter_text)
    if edit.clear_at_least is not None and saved < edit.clear_at_least.value:
        return asked, text, {}
    return shorter, shorter_text, {"type": edit.type, "cleared_tool_uses": found.uses, "cleared_input_tokens": saved}


# A Messages request to the conversation and the `GenerationOrder` that a chat request with the same content makes.

_FIELDS = Fields("messages", "max_tokens", "top_logprobs", "stop_sequences")


@dataclass(frozen=True, slots=True)
class MessagesChat:
    """A Messages request as a chat request. An assistant's last turn is to be continued.

    Args:
        words: its fields by the client's names.
        skipped: omitted tools and blocks, as named in the warning header.
    """

    chat: ChatCompletionRequest
    words: FieldWords
    skipped: list[str]

    @property
    def ignored(self) -> list[str]:
        """Ignored parts of its tools, for the warning header. Raises: InvalidRequestError."""
        with self.words.spoken():
            return [*self.skipped, *map(self.words.word, ignored_in_tools(self.chat))]


def prepare_messages(body: CountTokensRequest, asked: MessagesChat, model: ServedModel) -> Rendering:
    """The conversation to render.

    Raises: InvalidRequestError naming the field, or the block, that this server does not support.
    """
    chat = asked.chat
    with asked.words.spoken():
        variables: dict[str, Any] = {} if chat.reasoning_effort is None else {"reasoning_effort": chat.reasoning_effort}
        if body.thinking is not None:
            thinks = body.thinking.type != "disabled"
            if body.thinking.type != "adaptive":
                variables |= {"enable_thinking": thinks, "thinking": thinks}  # names in templates of several families
        return prepare_chat(model, chat.messages, chat, variables)


def prompt_ids(model: ServedModel, text: Rendered, *, must_fit: bool = True) -> list[int]:
    """Token ids of a rendered conversation.

    Raises: ContextLengthError in words that agents recognize, to shorten the conversation and continue.
    """
    try:
        return encode_prompt(model, text, add_special_tokens=False, param="messages", must_fit=must_fit)
    except ContextLengthError as error:
        raise _too_long(error.prompt_tokens or model.max_model_len + 1, model.max_model_len) from error


def _too_long(tokens: int, most: int) -> ContextLengthError:
    """Claude Code matches this text, and then compacts the conversation."""
    return ContextLengthError(f"prompt is too long: {tokens} tokens > {most} maximum", param="messages")


def messages_order(
    body: MessagesRequest,
    spoken: MessagesChat,
    model: ServedModel,
    settings: ApiSettings,
    tenant: Tenant,
    text: Rendered,
) -> GenerationOrder:
    """Translate a request.

    The output is limited by the model's context as well as by `max_tokens`: agents request more than most models have.

    Args:
        spoken: result of `messages_chat`.
        text: the template's text for the result of `prepare_messages`.
    Raises: InvalidRequestError, ContextLengthError.
    """
    ids = prompt_ids(model, text)
    room = model.max_model_len - len(ids)
    if room < 1:
        raise _too_long(len(ids), model.max_model_len - 1)  # one token of output must fit, too
    asked = min(body.max_tokens, room)
    chat = spoken.chat.model_copy(
        update={
            "temperature": body.temperature,
            "top_p": body.top_p or None,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
            "stream": body.stream,
            "thinking_token_budget": _budget(body) if can_reason(model) else None,
            "seed": body.seed,
            "cache_salt": body.cache_salt,
            "priority": body.priority,
        }
    )
    with spoken.words.spoken():
        order = build_order("msg_", chat, model, settings, tenant, [ids], asked, None, _FIELDS, echo=False)
    return replace(order, max_tokens=body.max_tokens)


def wants_long_work(body: CountTokensRequest) -> bool:
    """Whether a request may have a grammar, so that translating it may take many milliseconds."""
    return bool(body.tools) or (body.output_config is not None and body.output_config.format is not None)


def messages_chat(body: CountTokensRequest, media: Media = "note") -> MessagesChat:
    """The equivalent chat request.

    Args:
        media: what replaces images and documents.
    Raises: InvalidRequestError naming the block that this server does not support.
    """
    messages: list[dict[str, Any]] = []
    words = {"tool_choice": "tool_choice", "response_format": "output_config.format"}
    if body.system is not None and (system := _system(body.system)):
        messages.append({"role": "system", "content": system})
    tools = messages_tools(body.tools, body.tool_choice, referenced_tools(body.messages))
    blocks = MessageBlocks(tools.found, MediaNotes(media))
    for index, turn in enumerate(body.messages):
        for message in blocks.messages(turn, f"messages[{index}]"):
            words[f"messages[{len(messages)}]"] = f"messages[{index}]"
            messages.append(message)
    goes_on = messages[-1]["role"] == "assistant"
    if goes_on and isinstance(content := messages[-1]["content"], list):
        messages[-1]["content"] = "\n".join(part["text"] for part in content)
    effort = body.output_config.effort if body.output_config is not None else None
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "continue_final_message": goes_on,
        "reasoning_effort": effort,
    }
    chat = ChatCompletionRequest.model_validate({**fields, **tools.fields, "response_format": _format(body)})
    places = {**words, **tools.places, "thinking_token_budget": "thinking.budget_tokens"}
    return MessagesChat(chat, FieldWords(places), [*tools.skipped, *blocks.skipped])


def _budget(body: CountTokensRequest) -> int | None:
    return body.thinking.budget_tokens if body.thinking is not None and body.thinking.type == "enabled" else None


def _format(body: CountTokensRequest) -> dict[str, Any] | None:
    """`output_config.format` in chat's form."""
    form = body.output_config.format if body.output_config is not None else None
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        field = "output_config.format"
        raise InvalidRequestError(f"'{field}' must be of type json_schema", param=field, code="invalid_value")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


def _system(system: str | Sequence[object]) -> str | list[dict[str, str]]:
    if isinstance(system, str):
        return system
    return [{"type": "text", "text": system_text(block, f"system[{index}]")} for index, block in enumerate(system)]

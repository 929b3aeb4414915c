"""A Responses request to the equivalent chat request, and to its `GenerationOrder`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from serving.config.gateway import Media
from serving.errors import InvalidRequestError
from serving.gateway.api.http.errors import FieldWords, from_validation
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.media import MediaNotes
from serving.gateway.api.prompts import Rendered, encode_prompt
from serving.gateway.api.responses.compaction import LONGEST, REQUEST, since_compaction, wants_compaction
from serving.gateway.api.responses.items import Turns
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.responses.tools import FlatNames, chat_choice, chat_tools
from serving.gateway.api.sampling import Fields
from serving.gateway.api.schema import ChatCompletionRequest, SamplingFields
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.translate import GenerationOrder, build_order

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
_OF_OTHER_TOOLS = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""Values of `include` that request details of features that this server does not have."""
_FIELDS = Fields("input", "max_output_tokens", "top_logprobs")
_WORDS = {
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "tool_choice.custom": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
    "tool_choice.allowed_tools.function": "tool_choice.tools",
    "tool_choice.allowed_tools.custom": "tool_choice.tools",
}
_ALIKE = (*SamplingFields.model_fields, "model", "stream", "cache_salt", "priority", "chat_template_kwargs")
_ROOM_SHARE = 4
"""With `truncation` auto, the divisor of the context for the share reserved for an output without a limit."""


@dataclass(frozen=True, slots=True)
class ResponsesChat:
    """A Responses request as a chat request.

    Args:
        words: its fields by the client's names.
        names: names of its tools.
        skipped: omitted tools, items and parts, as named in the warning header.
        compacts: whether it asks for a summary in place of an answer.
    """

    chat: ChatCompletionRequest
    words: FieldWords
    names: FlatNames
    skipped: list[str]
    compacts: bool


def as_chat(
    body: ResponsesRequest,
    given: str | Sequence[object],
    earlier: Sequence[dict[str, Any]] = (),
    media: Media = "note",
) -> ResponsesChat:
    """The equivalent chat request.

    Args:
        given: its input.
        earlier: items of the conversation that the request continues.
        media: what replaces images, files and sound.
    Raises: InvalidRequestError naming the field, or the item, that this server does not support.
    """
    _check_include(body)
    compacts = wants_compaction(given)
    items: list[tuple[str, object]] = [("previous_response_id", one) for one in earlier]
    items += [] if isinstance(given, str) else [(f"input[{index}]", item) for index, item in enumerate(given)]
    items = since_compaction(items)
    tools = chat_tools(body.tools or (), items)
    turns = Turns(tools.names, tools.by_name(), MediaNotes(media))
    if body.instructions:
        turns.say("system", body.instructions, "instructions")
    for path, item in items:
        turns.take(item, path)
    if isinstance(given, str):
        turns.say("user", given, "input")
    if compacts:
        turns.say("user", REQUEST, f"input[{len(given) - 1}]")
    turns.close()
    words = FieldWords({**_WORDS, **turns.sources, **tools.words()})
    fields: dict[str, Any] = {name: getattr(body, name) for name in _ALIKE}
    fields |= {
        "messages": turns.messages,
        "tools": tools.tools or None,
        "tool_choice": "auto" if compacts else chat_choice(body.tool_choice, tools),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body),
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }
    if body.text is not None and body.text.verbosity is not None:
        fields["chat_template_kwargs"] = {"verbosity": body.text.verbosity, **(body.chat_template_kwargs or {})}
    with words.spoken():
        try:
            chat = ChatCompletionRequest.model_validate(fields)
            return ResponsesChat(chat, words, tools.names, [*tools.skipped, *turns.skipped], compacts)
        except ValidationError as error:
            raise from_validation(error) from error


def responses_order(
    body: ResponsesRequest,
    asked: ResponsesChat,
    model: ServedModel,
    settings: ApiSettings,
    tenant: Tenant,
    text: Rendered | Sequence[int],
) -> GenerationOrder:
    """Translate a request.

    The output is limited by the model's context as well as by `max_output_tokens`: agents request more than most
    models have.

    Args:
        asked: result of `as_chat`.
        text: the template's text for it, or its token ids.
    Raises: InvalidRequestError, ContextLengthError.
    """
    ids = input_ids(body, model, text) if isinstance(text, Rendered) else list(text)
    limit = body.max_output_tokens or (LONGEST if asked.compacts else None)
    if limit is not None:
        limit = min(limit, max(1, model.max_model_len - len(ids)))
    logprobs = body.top_logprobs or 0 if LOGPROBS in (body.include or ()) else None
    order = build_order("resp_", asked.chat, model, settings, tenant, [ids], limit, logprobs, _FIELDS, echo=False)
    return replace(order, max_tokens=body.max_output_tokens)


def input_ids(body: ResponsesRequest, model: ServedModel, text: Rendered) -> list[int]:
    """Token ids of a conversation, without the beginning that `truncation` auto removes.

    Raises: InvalidRequestError, ContextLengthError.
    """
    cuts = body.truncation == "auto"
    ids = encode_prompt(model, text, add_special_tokens=False, param="input", must_fit=not cuts)
    if not cuts:
        return ids
    reserve = body.max_output_tokens or model.max_model_len // _ROOM_SHARE
    return ids[-max(1, model.max_model_len - reserve) :]


def _check_include(body: ResponsesRequest) -> None:
    """Refuse an `include` that cannot be satisfied.

    Raises: InvalidRequestError.
    """
    known = (LOGPROBS, SEALED_REASONING, *_OF_OTHER_TOOLS)
    for index, one in enumerate(body.include or ()):
        if one not in known:
            field = f"include[{index}]"
            raise InvalidRequestError(f"'{field}' must be one of {', '.join(known)}", param=field, code="invalid_value")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        message = f"'top_logprobs' needs '{LOGPROBS}' in 'include'"
        raise InvalidRequestError(message, param="top_logprobs", code="invalid_value")


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    """`text.format` in chat's form, where the schema is nested one level deeper.

    Raises: InvalidRequestError.
    """
    form = None if body.text is None else body.text.format
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        message = "'text.format' must be an object whose type is text, json_object or json_schema"
        raise InvalidRequestError(message, param="text.format", code="invalid_value")
    if form["type"] != "json_schema":
        return form
    inner = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}

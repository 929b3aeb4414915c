"""A Messages request to the conversation and the `GenerationOrder` that a chat request with the same content makes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from serving.errors import ContextLengthError, InvalidRequestError
from serving.gateway.api.chat_template import Rendering
from serving.gateway.api.messages_schema import CountTokensRequest, MessagesRequest, MessageTurn
from serving.gateway.api.prompts import Rendered, encode_prompt, prepare_chat
from serving.gateway.api.sampling import Fields
from serving.gateway.api.schema import ChatCompletionRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.tenant import Tenant
from serving.gateway.api.translate import GenerationOrder, build_order

_FIELDS = Fields("messages", "max_tokens", "top_logprobs", "stop_sequences")
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code writes for Anthropic's accounts. It changes with every request, so that no
prefix behind it would ever be cached, and means nothing to a model."""
_THINKING = ("thinking", "redacted_thinking")


def prepare_messages(body: CountTokensRequest, model: ServedModel) -> Rendering:
    """The conversation to render.

    Raises: InvalidRequestError naming the field, or the block, that this server cannot take.
    """
    _refuse_unsupported(body)
    chat = _as_chat(body)
    effort = body.output_config.effort if body.output_config is not None else None
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if body.thinking is not None and body.thinking.type == "disabled":
        variables |= {"enable_thinking": False, "thinking": False}  # as templates of several families call it
    return prepare_chat(model, chat.messages, chat, variables)


def prompt_ids(model: ServedModel, text: Rendered) -> list[int]:
    """Token ids of a rendered conversation.

    Raises: ContextLengthError in words that agents know: they shorten the conversation and go on.
    """
    try:
        return encode_prompt(model, text, add_special_tokens=False, param="messages", must_fit=True)
    except ContextLengthError as error:
        raise ContextLengthError(f"prompt is too long: {error}", param="messages") from error


def messages_order(
    body: MessagesRequest, model: ServedModel, settings: ApiSettings, tenant: Tenant, text: Rendered
) -> GenerationOrder:
    """Translate a request.

    The output is bounded by what fits the model as well as by `max_tokens`: agents ask for more than most models have.

    Args:
        text: what the template has made of `prepare_messages`.
    Raises: InvalidRequestError, ContextLengthError.
    """
    ids = prompt_ids(model, text)
    room = model.max_model_len - len(ids)
    if room < 1:
        raise ContextLengthError(
            f"prompt is too long: {len(ids)} tokens and at least one of output > {model.max_model_len} maximum",
            param="messages",
        )
    asked = min(body.max_tokens, room)
    chat = _as_chat(body).model_copy(
        update={
            "temperature": body.temperature,
            "top_p": body.top_p or None,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
            "stream": body.stream,
        }
    )
    order = build_order("msg_", chat, model, settings, tenant, [ids], asked, None, _FIELDS, echo=False)
    return replace(order, max_tokens=body.max_tokens)


def _refuse_unsupported(body: CountTokensRequest) -> None:
    """Refuse what would be ignored although it changes the answer.

    Raises: InvalidRequestError.
    """
    choice = body.tool_choice
    if choice is not None and (not isinstance(choice, dict) or choice.get("type") not in ("auto", "none")):
        raise _unsupported("tool_choice", "leave it out")
    if body.tools and (choice is None or choice.get("type") != "none"):
        raise _unsupported("tools", 'leave them out or set \'tool_choice\' to {"type": "none"}')
    if body.thinking is not None and body.thinking.type == "enabled":
        raise _unsupported("thinking", 'leave it out or set its type to "adaptive" or "disabled"')
    if body.output_config is not None and body.output_config.format is not None:
        raise _unsupported("output_config.format", "leave it out")


def _unsupported(field: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{field}' is not supported yet by this server; {remedy}", param=field, code="unsupported_parameter"
    )


def _as_chat(body: CountTokensRequest) -> ChatCompletionRequest:
    """The same conversation as a chat request. An assistant's last turn is one to go on with."""
    messages: list[dict[str, Any]] = []
    if body.system is not None and (system := _system(body.system)):
        messages.append({"role": "system", "content": system})
    messages += [_message(turn, f"messages[{index}]") for index, turn in enumerate(body.messages)]
    goes_on = body.messages[-1].role == "assistant"
    if goes_on and isinstance(content := messages[-1]["content"], list):
        messages[-1]["content"] = "\n".join(part["text"] for part in content)
    return ChatCompletionRequest.model_validate(
        {"model": body.model, "messages": messages, "continue_final_message": goes_on}
    )


def _system(system: str | Sequence[object]) -> str | list[dict[str, str]]:
    if isinstance(system, str):
        return system
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    return [{"type": "text", "text": text} for text in texts if not text.startswith(_BILLING)]


def _message(turn: MessageTurn, path: str) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": turn.role, "content": turn.content}
    texts, thoughts = [], []
    for index, block in enumerate(turn.content):
        place = f"{path}.content[{index}]"
        if isinstance(block, dict) and block.get("type") in _THINKING and turn.role == "assistant":
            thoughts.append(_thought(block, place))
        else:
            texts.append({"type": "text", "text": _text(block, place)})
    thinking = "\n".join(filter(None, thoughts))
    return {"role": turn.role, "content": texts, **({"reasoning_content": thinking} if thinking else {})}


def _thought(block: Mapping[str, object], path: str) -> str:
    """Earlier thinking, for templates that show it to the model; another provider's sealed thinking is empty here."""
    if block["type"] == "redacted_thinking":
        return ""
    thinking = block.get("thinking")
    if not isinstance(thinking, str):
        raise InvalidRequestError(f"'{path}.thinking' must be a text", param=f"{path}.thinking", code="invalid_value")
    return thinking


def _text(block: object, path: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(block, dict) and kind == "text":
        if isinstance(text := block.get("text"), str):
            return text
        raise InvalidRequestError(f"'{path}.text' must be a text", param=f"{path}.text", code="invalid_value")
    shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else ""
    raise InvalidRequestError(
        f"'{path}': a block {shown}is not supported here; this server takes blocks of type 'text'",
        param=path,
        code="unsupported_content",
    )

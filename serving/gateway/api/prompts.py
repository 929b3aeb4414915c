"""Prompts to token ids: chat messages through the template, texts through the tokenizer, ids checked."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.errors import ContextLengthError, InvalidRequestError
from serving.gateway.api.output_plan import require_family
from serving.gateway.api.schema import ChatCompletionRequest, ChatMessage, ChatTemplateFields
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.api.templates.control_tokens import unmarked
from serving.gateway.api.tools.custom_tools import custom_arguments
from serving.gateway.api.tools.family import HistoryId
from serving.gateway.api.tools.tool_fields import tool_use

_TEXT_PARTS = ("text", "input_text", "output_text")
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "reasoning", "reasoning_content")
_BILLING = "x-anthropic-billing-header:"
_PAIRS = r"(?:[ \t]*[\w.-]+=[^;\r\n]*(?:;|(?=[\r\n])|\Z))+"
_BILLING_LINE = re.compile(
    rf"^[ \t\ufeff]*{_BILLING}(?:{_PAIRS}[ \t]*|[^\r\n]*)(?:\r?\n)?|{_BILLING}{_PAIRS}", re.MULTILINE
)
"""Line that Claude Code writes for Anthropic's accounting. It changes with every request, so no prefix after it would
be cached, and it has no meaning for a model. Text after its last `name=value;` on the same line is not part of it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as prompt text, in which control tokens spelled by messages are marked as text."""

    marked: str


def prepare_chat(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    fields: ChatTemplateFields,
    variables: dict[str, Any] | None = None,
) -> Rendering:
    """Prepare a conversation for the chat template.

    Raises: InvalidRequestError when the model has no chat template, or a message has no text.
    """
    if model.chat_template is None:
        raise InvalidRequestError(
            "this model has no chat template; use /v1/completions", param="messages", code="unsupported_parameter"
        )
    add_prompt = fields.add_generation_prompt
    if add_prompt is None:  # a message to be continued excludes a new turn
        add_prompt = not fields.continue_final_message
    use = tool_use(fields) if isinstance(fields, ChatCompletionRequest) else None
    if use is not None:
        require_family(model)
    objects = model.tool_family is None or model.tool_family.wants_objects(model.chat_template.source)
    offered = (
        [tool.shown for tool in use.offered if not tool.deferred] if use is not None else getattr(fields, "tools", None)
    )
    plain = [with_calls(plain_message(message, index), index, objects) for index, message in enumerate(messages)]
    plain = [one for one, given in zip(plain, messages, strict=True) if not _only_billed(one, given)] or plain
    if model.tool_family is not None and model.tool_family.history_id is not None:
        plain = with_history_ids(plain, model.tool_family.history_id)
    return model.chat_template.prepare(
        plain,
        tools=offered if use is not None or not isinstance(fields, ChatCompletionRequest) else None,
        add_generation_prompt=add_prompt,
        continue_final_message=bool(fields.continue_final_message),
        variables={**(variables or {}), **(fields.chat_template_kwargs or {})},
        control=model.control_tokens,
    )


async def render_chat(model: ServedModel, rendering: Rendering) -> Rendered:
    """Prompt text of a conversation.

    Raises: InvalidRequestError when the template refuses it; OverloadedError; TimeoutError.
    """
    assert model.chat_template is not None, "it has made the conversation ready"
    return Rendered(await model.chat_template.render(rendering))


def plain_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """The message as templates expect it: role `system` for `developer`, text parts joined to one string.

    Instructions lose Claude Code's billing line.

    Raises: InvalidRequestError for parts that are not text, and for missing content.
    """
    if message.content is None and not any((message.model_extra or {}).get(key) for key in _INSTEAD_OF_CONTENT):
        param = f"messages[{index}].content"
        raise InvalidRequestError(f"missing required field '{param}'", param=param, code="missing_required_parameter")
    plain = message.model_dump()
    if message.role == "developer":
        plain["role"] = "system"
    texts: list[str] = []
    if isinstance(message.content, list):
        texts = [_part_text(part, index) for part in message.content]
        plain["content"] = "\n".join(texts)
    elif message.content is not None:
        texts = [message.content]
    if plain["role"] == "system" and any(_BILLING in text for text in texts):
        plain["content"] = "\n".join(bare for text in texts if (bare := _BILLING_LINE.sub("", text)) or not text)
    return plain


def _only_billed(plain: dict[str, Any], given: ChatMessage) -> bool:
    """Whether instructions consist of the billing line alone."""
    return plain["role"] == "system" and plain["content"] == "" and _BILLING in str(given.content)


def _part_text(part: object, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") in _TEXT_PARTS:
        return str(part["text"])
    if isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    raise InvalidRequestError(
        "content parts must be of type 'text'; this model reads text only",
        param=f"messages[{index}].content",
        code="unsupported_content",
    )


def split_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """A completion prompt's four forms as a list of texts or id lists.

    Raises: InvalidRequestError when it is empty.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("'prompt' must not be empty", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [prompt]  # the wire model allows only lists of one kind
    return list(prompt)


def encode_prompt(
    model: ServedModel,
    prompt: str | Rendered | Sequence[int],
    *,
    add_special_tokens: bool,
    param: str,
    must_fit: bool = False,
) -> list[int]:
    """Token ids of one prompt: text, a conversation, or ids.

    Args:
        must_fit: refuse a text that cannot fit the model before spending time on it.
    Raises: InvalidRequestError when it is empty or has ids outside the vocabulary; ContextLengthError.
    """
    if isinstance(prompt, str | Rendered):
        if must_fit:
            require_fit(model, prompt, param)
        ids = encode_text(model, prompt, add_special_tokens=add_special_tokens)
    else:
        ids = list(prompt)
    if not ids:
        raise InvalidRequestError(f"'{param}' must hold at least one token", param=param, code="invalid_value")
    limit = model.token_limit  # a tokenizer may know more tokens than the model, which would fail the whole step
    if (largest := max(ids)) >= limit:
        raise InvalidRequestError(
            f"token id {largest} is outside the vocabulary of {limit} tokens", param=param, code="invalid_value"
        )
    return ids


def require_fit(model: ServedModel, prompt: str | Rendered, param: str) -> None:
    """Refuse a text that certainly cannot fit the model, without spending time on it.

    Raises: ContextLengthError.
    """
    least = model.tokenizer.least_tokens(prompt if isinstance(prompt, str) else unmarked(prompt.marked))
    if least > model.max_model_len:
        error = ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens. However, your prompt contains "
            f"at least {least} tokens. Shorten the prompt.",
            param=param,
        )
        error.prompt_tokens = least
        raise error


def encode_text(model: ServedModel, prompt: str | Rendered, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text, with all its control tokens, or of a conversation, with the template's control tokens."""
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    return model.control_tokens.encode(prompt.marked, add_special_tokens=add_special_tokens)


# Conversion of calls in earlier turns of a conversation for chat templates.


def with_calls(message: dict[str, Any], index: int, objects: bool) -> dict[str, Any]:
    """A message whose calls have OpenAI's form, with arguments in the form that the template expects.

    Args:
        objects: whether arguments are objects, not JSON text.
    Raises: InvalidRequestError for calls of any other form.
    """
    calls = message.get("tool_calls")
    old = message.get("function_call")
    if old is not None:
        calls = [{"type": "function", "function": old}]
    if not calls:
        return message
    place = f"messages[{index}].{'tool_calls' if old is None else 'function_call'}"
    if not isinstance(calls, list):
        raise InvalidRequestError(f"'{place}' must be a list of calls", param=place, code="invalid_value")
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [_call(call, f"{place}[{number}]", objects) for number, call in enumerate(calls)]}


def _call(call: object, place: str, objects: bool) -> dict[str, Any]:
    if isinstance(call, dict) and call.get("type") == "custom":
        call = _as_function(call, place)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        message = f"'{place}.function' must be an object with a 'name'"
        raise InvalidRequestError(message, param=f"{place}.function", code="invalid_value")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and objects:
        try:
            arguments = parse_json(arguments or "{}")
        except ValueError:  # cut off, as the model wrote it
            arguments = {"": arguments}
    elif arguments is None:
        arguments = {} if objects else "{}"
    elif not isinstance(arguments, str) and not objects:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _as_function(call: dict[str, Any], place: str) -> dict[str, Any]:
    """A custom tool's call as a function call."""
    custom = call.get("custom")
    name, text = (custom.get("name"), custom.get("input")) if isinstance(custom, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str):
        message = f"'{place}.custom' must be an object with a 'name' and an 'input', which are texts"
        raise InvalidRequestError(message, param=f"{place}.custom", code="invalid_value")
    rest = {key: value for key, value in call.items() if key != "custom"}
    return {**rest, "type": "function", "function": {"name": name, "arguments": custom_arguments(text)}}


def with_history_ids(messages: Sequence[dict[str, Any]], history_id: HistoryId) -> list[dict[str, Any]]:
    """A conversation whose calls and tool results have ids in the form of a family.

    A result belongs to the latest call with its id; one without an id to the first call that has no result yet.

    Args:
        messages: with calls in OpenAI's form.
    """
    named: dict[str, str] = {}
    waiting: list[str] = []
    count = 0
    shown = []
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting = []
            own = []
            for call in calls:
                given = call.get("id") if isinstance(call.get("id"), str) else ""
                own_id = history_id(given, call["function"]["name"], count)
                named[given] = own_id
                waiting.append(own_id)
                own.append({**call, "id": own_id})
                count += 1
            message = {**message, "tool_calls": own}
        elif message["role"] in ("tool", "function"):
            given = message.get("tool_call_id")
            given = named.get(given, given) if isinstance(given, str) and given else next(iter(waiting), None)
            if given in waiting:
                waiting.remove(given)
            message = {**message, "tool_call_id": given}
        shown.append(message)
    return shown

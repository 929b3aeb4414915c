"""Conversion of calls in earlier turns of a conversation for chat templates."""

import json
from collections.abc import Sequence
from typing import Any

from hardware.nesting import parse_json
from serving.errors import InvalidRequestError
from serving.gateway.api.custom_tools import custom_arguments
from serving.gateway.api.tools.family import HistoryId


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

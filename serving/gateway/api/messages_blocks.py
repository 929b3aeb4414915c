"""Turns of a Messages request, as messages of a chat: their blocks of text, thinking, calls and results."""

import json
from collections.abc import Mapping
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.messages_schema import MessageTurn

_THINKING = ("thinking", "redacted_thinking")


def chat_messages(turn: MessageTurn, path: str) -> list[dict[str, Any]]:
    """One turn. Each result of a tool is a message of its own, before the turn's text.

    Raises: InvalidRequestError naming the block that this server cannot take.
    """
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(turn.content):
        place = f"{path}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and turn.role == "assistant" and kind in _THINKING:
            thoughts.append(_thought(block, place))
        elif isinstance(block, dict) and turn.role == "assistant" and kind == "tool_use":
            calls.append(_call(block, place))
        elif isinstance(block, dict) and turn.role == "user" and kind == "tool_result":
            results.append(_result(block, place))
        else:
            texts.append({"type": "text", "text": block_text(block, place)})
    if not texts and not calls and results:
        return results
    thinking = "\n".join(filter(None, thoughts))
    message: dict[str, Any] = {"role": turn.role, "content": texts}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return [*results, message]


def block_text(block: object, path: str) -> str:
    """Text of a block. Raises: InvalidRequestError for any other."""
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(block, dict) and kind == "text":
        return _string(block, "text", path)
    shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else ""
    raise InvalidRequestError(
        f"'{path}': a block {shown}is not supported here; this server takes text, thinking, tool_use and tool_result",
        param=path,
        code="unsupported_content",
    )


def _string(block: Mapping[str, object], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"'{path}.{name}' must be a text", param=f"{path}.{name}", code="invalid_value")
    return value


def _thought(block: Mapping[str, object], path: str) -> str:
    """Earlier thinking, for templates that show it to the model; another provider's sealed thinking is empty here."""
    return "" if block["type"] == "redacted_thinking" else _string(block, "thinking", path)


def _call(block: Mapping[str, object], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"'{path}.input' must be an object", param=f"{path}.input", code="invalid_value")
    function = {"name": _string(block, "name", path), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _string(block, "id", path), "type": "function", "function": function}


def _result(block: Mapping[str, object], path: str) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        text = "\n".join(block_text(one, f"{path}.content[{index}]") for index, one in enumerate(content))
    else:
        text = "" if content is None else _string(block, "content", path)
    if block.get("is_error") and not text:
        text = "error"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", path), "content": text}

"""Items of a Responses conversation to the messages of a chat: what one turn said, thought and called is one message.

reasoning, message, function_call, function_call    one message of the assistant
function_call_output                                a message of role `tool`
"""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidRequestError

SEALED = "cloudmatrix:"
"""Begins our `encrypted_content`: the reasoning itself, in the clear, for clients that keep nothing else of it."""
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ITEMS = ("message", "reasoning", "function_call", "function_call_output")

Item = Mapping[str, Any]


class Turns:
    """Messages of a chat, built item by item; `sources` says where each, and each call in it, stands in the request."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sources: dict[str, str] = {}

    def say(self, role: str, content: str, path: str) -> None:
        """Add a message with text."""
        if role == "assistant" and (open_turn := self._open_turn()) is not None and "content" not in open_turn:
            open_turn["content"] = content
            return
        self._add({"role": role, "content": content}, path)

    def take(self, item: object, path: str) -> None:
        """Add one item.

        Args:
            path: of the item, for errors.
        Raises: InvalidRequestError naming what this server cannot take.
        """
        if not isinstance(item, dict):
            raise _wrong(path, "must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._message(item, path)
        elif kind == "reasoning":
            self._reasoning(item, path)
        elif kind == "function_call":
            self._call(item, path)
        elif kind == "function_call_output":
            call = _text(item, "call_id", path)
            content = contents(item.get("output"), f"{path}.output")
            self._add({"role": "tool", "tool_call_id": call, "content": content}, path)
        else:
            shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else "without a type "
            raise InvalidRequestError(
                f"'{path}': an item {shown}is not supported here; this server takes {', '.join(_ITEMS)}",
                param=path,
                code="unsupported_content",
            )

    def _message(self, item: Item, path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise _wrong(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        self.say(role, contents(item.get("content"), f"{path}.content"), path)

    def _reasoning(self, item: Item, path: str) -> None:
        thought = _thought(item, path)
        if thought:
            self._add({"role": "assistant", "reasoning_content": thought}, path)

    def _call(self, item: Item, path: str) -> None:
        function = {"name": _text(item, "name", path), "arguments": _text(item, "arguments", path)}
        call = {"id": _text(item, "call_id", path), "type": "function", "function": function}
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            last = self._add({"role": "assistant"}, path)
        calls = last.setdefault("tool_calls", [])
        place = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.sources |= {place: path, f"{place}.function": path}
        calls.append(call)

    def _open_turn(self) -> dict[str, Any] | None:
        """The last message, where it is an assistant's that has called nothing yet."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" and "tool_calls" not in last else None

    def _add(self, message: dict[str, Any], path: str) -> dict[str, Any]:
        self.sources[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)
        return message

    def close(self) -> None:
        """Give a turn that only thought an empty text: its message must have a content."""
        for message in self.messages:
            if "tool_calls" not in message:
                message.setdefault("content", "")


def contents(content: object, path: str) -> str:
    """Text of an item's content.

    Raises: InvalidRequestError for parts that are no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(path, "must be a text or a list of parts")
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in _TEXTS:
        return _text(part, "text", path)
    if isinstance(part, dict) and kind == "refusal":
        return _text(part, "refusal", path)
    shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else ""
    raise InvalidRequestError(
        f"'{path}': a part {shown}is not supported here; this model reads text only",
        param=path,
        code="unsupported_content",
    )


def _thought(item: Item, path: str) -> str:
    """Reasoning of an earlier turn. Another provider's sealed reasoning is nothing here."""
    parts = item.get("content") or item.get("summary")
    if parts:
        return contents(parts, f"{path}.content" if item.get("content") else f"{path}.summary")
    sealed = item.get("encrypted_content")
    return sealed[len(SEALED) :] if isinstance(sealed, str) and sealed.startswith(SEALED) else ""


def _text(item: Item, field: str, path: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise _wrong(f"{path}.{field}", "must be a text")
    return value


def _wrong(path: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{path}' {words}", param=path, code="invalid_value")


def kept_items(given: str | Sequence[object], stem: str) -> list[dict[str, Any]]:
    """The input as items that have a type and an id each, as they are kept and listed.

    Args:
        stem: what ids are made of.
    Effects: none; what is given stays as it is.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    items = [dict(item) for item in given if isinstance(item, dict)]
    return [_kept(item, f"{stem}_in{number}") for number, item in enumerate(items)]


def _kept(item: dict[str, Any], mark: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}.get(kind, "fco")
    kept = {**item, "type": kind, "id": item.get("id") or f"{prefix}_{mark}", "status": "completed"}
    if kind == "message" and isinstance(kept.get("content"), str):
        text = "output_text" if kept.get("role") == "assistant" else "input_text"
        kept["content"] = [{"type": text, "text": kept["content"], **({"annotations": []} if text[0] == "o" else {})}]
    return kept

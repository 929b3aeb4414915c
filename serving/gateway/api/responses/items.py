"""Items of a Responses conversation to chat messages: text, reasoning and calls of one turn become one message.

reasoning, message, function_call, custom_tool_call ...    one message of the assistant
function_call_output, custom_tool_call_output ...          a message of role `tool`
agent_message                                              a message of role `user` that names its author
compaction                                                 a message of role `user` with the summary

Hosted calls and sealed items of other providers are skipped and named in the warning header.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.media import MediaNotes, note
from serving.gateway.api.responses.compaction import COMPACTIONS, TRIGGER, readable, summary_turn, unsealed
from serving.gateway.api.responses.tools import FlatNames
from serving.gateway.api.tools.custom_tools import custom_arguments
from serving.gateway.api.tools.tool_fields import Definitions

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_OWN_CALLS = {
    "tool_search_call": ("tool_search", "arguments"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "computer_call": ("computer", "action"),
}
"""Calls of OpenAI's typed tools that the client runs: the tool's name, and the field of its arguments."""
_OWN_OUTPUTS = ("local_shell_call_output", "shell_call_output", "apply_patch_call_output", "computer_call_output")
_SKIPPED = frozenset((
    "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "mcp_list_tools",
    "mcp_approval_request", "mcp_approval_response", "program", "program_output", "configuration_update",
))  # fmt: skip
_ITEMS = (
    "message", "agent_message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "mcp_call", "tool_search_output", "additional_tools", *_OWN_CALLS, *_OWN_OUTPUTS,
    *COMPACTIONS, TRIGGER,
)  # fmt: skip
_UNREAD = {
    "input_image": "image",
    "image": "image",
    "computer_screenshot": "image",
    "input_file": "file",
    "input_audio": "audio",
}
"""Parts that a text model cannot read, with the kind that their placeholder names."""
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
"""Prefixes of items' ids."""

Item = Mapping[str, Any]


class Turns:
    """Messages of a chat, built item by item; `sources` maps each message and call to its path in the request.

    Args:
        names: flat names of the request's tools.
        tools: chat definitions, by flat name.
        media: what replaces images, files and sound.
    """

    def __init__(self, names: FlatNames, tools: Mapping[str, Mapping[str, Any]], media: MediaNotes) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sources: dict[str, str] = {}
        self.skipped = media.replaced
        """Omitted items and parts, as named in the warning header."""
        self._media = media
        self._names = names
        self._definitions = Definitions(tools)

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
        Raises: InvalidRequestError naming the part that this server does not support.
        """
        if not isinstance(item, dict):
            raise _wrong(path, "must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise _wrong(f"{path}.type" if "type" in item else path, "must have a type, which is a string")
        if kind in _SKIPPED:
            self.skipped.append(f"{path} ({kind})")
        elif kind in COMPACTIONS:
            self._compaction(item, path)
        elif kind == "message":
            self._message(item, path)
        elif kind == "agent_message":
            words = f"[message from {_text(item, 'author', path)}]\n{self._contents(item, 'content', path)}"
            self._add({"role": "user", "content": words}, path)
        elif kind == "reasoning":
            self._reasoning(item, path)
        elif kind in ("function_call", "custom_tool_call"):
            name = self._names.of(_namespace(item, path), _text(item, "name", path))
            custom = kind == "custom_tool_call"
            arguments = custom_arguments(_text(item, "input", path)) if custom else _text(item, "arguments", path)
            self._call(_text(item, "call_id", path), name, arguments, path)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(_text(item, "call_id", path), self._contents(item, "output", path), path)
        elif kind != "additional_tools" and not self._typed(kind, item, path):
            message = (
                f"'{path}': an item of type '{kind[:40]}' is not supported here; this server takes {', '.join(_ITEMS)}"
            )
            raise InvalidRequestError(message, param=path, code="unsupported_content")

    def _typed(self, kind: str, item: Item, path: str) -> bool:
        """Add a call of a typed tool, or its result. Returns: whether the item is one."""
        call = next((item[key] for key in ("call_id", "id") if isinstance(item.get(key), str)), self._last_call())
        if kind in _OWN_CALLS:
            name, field = _OWN_CALLS[kind]
            self._call(call, name, json.dumps(item.get(field) or {}, ensure_ascii=False), path)
        elif kind == "mcp_call":
            name = self._names.of(_text(item, "server_label", path), _text(item, "name", path))
            self._call(call, name, _text(item, "arguments", path), path)
            self._result(call, _plain(item.get("output") or item.get("error")), path)
        elif kind == "tool_search_output":
            self._result(call, self._found(item), path)
        elif kind in _OWN_OUTPUTS:
            output = item.get("output")
            part = isinstance(output, dict) and output.get("type") == "computer_screenshot"
            text = self._part(output, f"{path}.output") if part else _plain(output or item.get("status"))
            self._result(call, text, path)
        else:
            return False
        return True

    def _found(self, item: Item) -> str:
        """Definitions of the tools that a search found, in the form shown to the model, one per line."""
        found = []
        for tool in item["tools"]:
            namespace = tool.get("name", "") if tool.get("type") == "namespace" else ""
            for one in tool.get("tools", ()) if namespace else (tool,):
                flat = self._names.of(namespace, str(one.get("name")))
                if (shown := self._definitions.of(flat)) is not None:
                    found.append(shown)
        return "\n".join(found) or "no tools"

    def _message(self, item: Item, path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise _wrong(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        self.say(role, self._contents(item, "content", path), path)

    def _compaction(self, item: Item, path: str) -> None:
        summary = summary_turn(item)
        if summary is None:
            self.skipped.append(f"{path} ({item['type']})")
        else:
            self._add({"role": "user", "content": summary}, path)

    def _reasoning(self, item: Item, path: str) -> None:
        thought = self._thought(item, path)
        if thought:
            self._add({"role": "assistant", "reasoning_content": thought}, path)

    def _call(self, call_id: str, name: str, arguments: str, path: str) -> None:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            last = self._add({"role": "assistant"}, path)
        calls = last.setdefault("tool_calls", [])
        place = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.sources |= {place: path, f"{place}.function": path}
        calls.append(call)

    def _result(self, call_id: str, text: str, path: str) -> None:
        self._add({"role": "tool", "tool_call_id": call_id, "content": text}, path)

    def _last_call(self) -> str:
        """Id of the latest call, for items without one."""
        calls = next((one["tool_calls"] for one in reversed(self.messages) if "tool_calls" in one), None)
        return calls[-1]["id"] if calls else "call_0"

    def _open_turn(self) -> dict[str, Any] | None:
        """The last message, if it is an assistant's without calls."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" and "tool_calls" not in last else None

    def _add(self, message: dict[str, Any], path: str) -> dict[str, Any]:
        self.sources[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)
        return message

    def close(self) -> None:
        """Give a turn with only reasoning an empty text: its message must have a content."""
        for message in self.messages:
            if "tool_calls" not in message:
                message.setdefault("content", "")

    def _contents(self, item: Item, field: str, path: str) -> str:
        """Text of an item's content.

        Raises: InvalidRequestError for unknown parts.
        """
        content, path = item.get(field), f"{path}.{field}"
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise _wrong(path, "must be a string or a list of parts")
        texts = [self._part(part, f"{path}[{index}]") for index, part in enumerate(content)]
        return "\n".join(texts)

    def _part(self, part: object, path: str) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and kind in _TEXTS:
            return _text(part, "text", path)
        if isinstance(part, dict) and kind == "refusal":
            return _text(part, "refusal", path)
        if isinstance(part, dict) and isinstance(kind, str) and kind in _UNREAD:
            return self._media.place(_UNREAD[kind], path, kind, part.get("filename"))
        if isinstance(part, dict) and kind == "encrypted_content":
            if (text := readable(part)) is not None:
                return text
            self.skipped.append(f"{path} ({kind})")
            return note("sealed text")
        shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else ""
        raise InvalidRequestError(
            f"'{path}': a part {shown}is not supported here; this model reads text only",
            param=path,
            code="unsupported_content",
        )

    def _thought(self, item: Item, path: str) -> str:
        """Reasoning of an earlier turn; empty for another provider's sealed reasoning."""
        for field in ("content", "summary"):
            if item.get(field):
                return self._contents(item, field, path)
        return unsealed(item) or ""


def _plain(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _namespace(item: Item, path: str) -> str:
    return "" if item.get("namespace") is None else _text(item, "namespace", path)


def _text(item: Item, field: str, path: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise _wrong(f"{path}.{field}", "must be a string")
    return value


def _wrong(path: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{path}' {words}", param=path, code="invalid_value")


def kept_items(given: str | Sequence[object], stem: str) -> list[dict[str, Any]]:
    """The input as items with a type and an id each, in the form in which they are stored and listed.

    Args:
        stem: prefix of the ids.
    Copies the items; the input is unchanged.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    items = [dict(item) for item in given if isinstance(item, dict)]
    return [_kept(item, f"{stem}_in{number}") for number, item in enumerate(items)]


def _kept(item: dict[str, Any], mark: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    kept = {
        **item,
        "type": kind,
        "id": item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{mark}",
        "status": "completed",
    }
    if kind == "message" and isinstance(kept.get("content"), str):
        text = "output_text" if kept.get("role") == "assistant" else "input_text"
        kept["content"] = [{"type": text, "text": kept["content"], **({"annotations": []} if text[0] == "o" else {})}]
    return kept

"""Converts turns of a Messages request to chat messages, by type of block:

text, thinking, tool_use, server_tool_use          the turn's own message
tool_result, web_search_tool_result ...            a message of role `tool`
tool_reference in a result                         the tool's definition, which is then omitted from the start
image, document that is no text                    a note in its place, and in the warning header
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.media import MediaNotes
from serving.gateway.api.messages.schema import MessageTurn
from serving.gateway.api.tools.tool_fields import Definitions

_THINKING = ("thinking", "redacted_thinking")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_SERVER_RESULT = re.compile(r"[a-z_]+_tool_result")
_SKIPPED = ("tool_addition", "tool_removal", "tool_definition", "container_upload", "fallback")
"""Blocks that have no meaning for the model."""
_TAKEN = (
    "text", "thinking", *_CALLS, "tool_result", "tool_reference", "search_result", "image", "document", "compaction",
)  # fmt: skip

Block = Mapping[str, Any]


def referenced_tools(turns: Sequence[MessageTurn]) -> frozenset[str]:
    """Names of the tools that search results refer to."""
    blocks = (block for turn in turns if isinstance(turn.content, list) for block in turn.content)
    return frozenset(name for block in blocks if isinstance(block, dict) for name in _references(block.get("content")))


def _references(content: object) -> Iterator[str]:
    if isinstance(content, dict):
        content = content.get("tool_references")
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict) and one.get("type") == "tool_reference" and isinstance(one.get("tool_name"), str):
            yield one["tool_name"]


class MessageBlocks:
    """Converter of turns.

    Args:
        found: chat definitions, by name, of the tools whose definition is placed in a search result.
        media: what replaces images and documents.
    """

    def __init__(self, found: Mapping[str, Block], media: MediaNotes) -> None:
        self._found = Definitions(found)
        self._media = media
        self.skipped = media.replaced
        """Omitted blocks, as named in the warning header."""

    def messages(self, turn: MessageTurn, path: str) -> list[dict[str, Any]]:
        """One turn. Each result of a client's tool is a message of its own, before the turn's text; the result of a
        server's tool follows the text that the model wrote before it.

        Raises: InvalidRequestError naming the block that this server does not support.
        """
        if isinstance(turn.content, str):
            return [{"role": turn.role, "content": turn.content}]
        done: list[dict[str, Any]] = []
        own = _Said(turn.role)
        for index, block in enumerate(turn.content):
            place = f"{path}.content[{index}]"
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(block, dict) or not isinstance(kind, str):
                own.texts.append(self.text(block, place))
            elif turn.role == "assistant" and kind in _THINKING:
                own.thoughts.append(_thought(block, place))
            elif turn.role == "assistant" and kind in _CALLS:
                own.calls.append(_call(block, place))
            elif turn.role == "user" and kind == "tool_result":
                done.append(self._result(block, place))
            elif kind != "tool_result" and _SERVER_RESULT.fullmatch(kind):
                done += own.messages()
                own = _Said(turn.role)
                done.append(self._result(block, place))
            elif kind in _SKIPPED:
                self.skipped.append(f"{place} ({kind})")
            else:
                own.texts.append(self.text(block, place))
        return done + own.messages() if done else own.messages() or [{"role": turn.role, "content": []}]

    def text(self, block: object, path: str) -> str:
        """Text of a block. Raises: InvalidRequestError for an unknown type."""
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and kind == "text":
            return _string(block, "text", path)
        if isinstance(block, dict) and kind == "image":
            return self._media.place("image", path, "image")
        if isinstance(block, dict) and kind == "document":
            return self._document(block, path)
        if isinstance(block, dict) and kind == "search_result":
            head = [block[name] for name in ("title", "source") if isinstance(block.get(name), str)]
            return "\n".join([*head, self._texts(block.get("content"), f"{path}.content")])
        if isinstance(block, dict) and kind == "tool_reference":
            name = _string(block, "tool_name", path)
            shown = self._found.of(name)
            return name if shown is None else shown
        if isinstance(block, dict) and kind == "compaction":
            return "" if block.get("content") is None else _string(block, "content", path)
        raise _unknown(kind, path, _TAKEN)

    def _texts(self, content: object, path: str) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"'{path}' must be a string or a list of blocks", param=path, code="invalid_value"
            )
        return "\n".join(self.text(one, f"{path}[{index}]") for index, one in enumerate(content))

    def _document(self, block: Block, path: str) -> str:
        source, title = block.get("source"), block.get("title")
        kind = source.get("type") if isinstance(source, dict) else None
        if isinstance(source, dict) and kind == "text":
            text = _string(source, "data", f"{path}.source")
        elif isinstance(source, dict) and kind == "content":
            text = self._texts(source.get("content"), f"{path}.source.content")
        else:
            return self._media.place("document", path, "document", title)
        head = [one for one in (title, block.get("context")) if isinstance(one, str) and one]
        return "\n".join([*head, text])

    def _result(self, block: Block, path: str) -> dict[str, Any]:
        content, place = block.get("content"), f"{path}.content"
        if block["type"] == "tool_result":
            text = "" if content is None else self._texts(content, place)
        elif isinstance(content, list):
            text = "\n".join(self._server_text(one, f"{place}[{index}]") for index, one in enumerate(content))
        else:
            text = "" if content is None else self._server_text(content, place)
        if block.get("is_error") and not text:
            text = "error"
        return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", path), "content": text}

    def _server_text(self, value: object, path: str) -> str:
        """Result of a tool run by a provider's server, as text without the encrypted parts."""
        if not isinstance(value, dict):
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if value.get("type") in _TAKEN:
            return self.text(value, path)
        if isinstance(references := value.get("tool_references"), list):
            return self._texts(references, f"{path}.tool_references")
        said = {}
        for name, one in value.items():
            if isinstance(one, dict) and one.get("type") in ("document", "image"):
                said[name] = self.text(one, f"{path}.{name}")
            elif name != "type" and not name.startswith("encrypted_") and one is not None:
                said[name] = one
        return json.dumps(said, ensure_ascii=False)


class _Said:
    """One message of a turn, up to the result of a server tool."""

    def __init__(self, role: str) -> None:
        self._role = role
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def messages(self) -> list[dict[str, Any]]:
        """The message; an empty list for an empty turn."""
        if not self.texts and not self.calls and not self.thoughts:
            return []
        message: dict[str, Any] = {
            "role": self._role,
            "content": [{"type": "text", "text": text} for text in self.texts],
        }
        if thinking := "\n".join(filter(None, self.thoughts)):
            message["reasoning_content"] = thinking
        if self.calls:
            message["tool_calls"] = self.calls
        return [message]


def system_text(block: object, path: str) -> str:
    """Text of a block of instructions. Raises: InvalidRequestError for any other."""
    if isinstance(block, dict) and block.get("type") == "text":
        return _string(block, "text", path)
    raise _unknown(block.get("type") if isinstance(block, dict) else None, path, ("text",))


def _unknown(kind: object, path: str, taken: Sequence[str]) -> InvalidRequestError:
    shown = f"of type '{kind[:40]}' " if isinstance(kind, str) else ""
    return InvalidRequestError(
        f"'{path}': a block {shown}is not supported here; this server takes {', '.join(taken)}",
        param=path,
        code="unsupported_content",
    )


def _string(block: Mapping[str, object], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"'{path}.{name}' must be a string", param=f"{path}.{name}", code="invalid_value")
    return value


def _thought(block: Mapping[str, object], path: str) -> str:
    """Earlier thinking, for templates that show it to the model; empty for another provider's sealed thinking."""
    return "" if block["type"] == "redacted_thinking" else _string(block, "thinking", path)


def _call(block: Mapping[str, object], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"'{path}.input' must be an object", param=f"{path}.input", code="invalid_value")
    function = {"name": _string(block, "name", path), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _string(block, "id", path), "type": "function", "function": function}

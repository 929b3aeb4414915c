"""Tools of a Responses request as a chat request has them: functions go on, types that this server lacks stay behind.

Agents send tools of every type that their provider has. One that is not here is left out and named in the warning
header; it is refused where the request demands its use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.unknown_fields import printable

_MODES = ("none", "auto", "required")
_PARTS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Tools of a request.

    Args:
        tools: as chat has them.
        places: where each of them stands in the request.
        skipped: those that stay behind, as the warning header names them.
    """

    tools: list[dict[str, Any]]
    places: list[int]
    skipped: list[str]


def chat_tools(tools: Sequence[object]) -> ChatTools:
    """Sort a request's tools.

    Raises: InvalidRequestError for what is no tool.
    """
    found = ChatTools([], [], [])
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(kind, str):
            message = f"'tools[{index}]' must be an object with a 'type'"
            raise InvalidRequestError(message, param=f"tools[{index}]", code="invalid_value")
        if kind == "function":
            function = {name: tool[name] for name in _PARTS if tool.get(name) is not None}
            found.tools.append({"type": "function", "function": function})
            found.places.append(index)
        else:
            found.skipped.append(f"tools[{index}] ({printable(kind)})")
    return found


def chat_choice(choice: object, found: ChatTools) -> object:
    """`tool_choice` as chat has it.

    Raises: InvalidRequestError for a choice of what is not here.
    """
    if choice is None or choice in _MODES:
        if choice == "required" and not found.tools:
            raise _refused("'tool_choice' is \"required\", and no tool of the request can be called here")
        return choice
    if not isinstance(choice, dict):
        raise _refused(f"'tool_choice' must be one of {', '.join(_MODES)}, or an object")
    kind = choice.get("type")
    if kind == "function" and isinstance(name := choice.get("name"), str):
        return {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools":
        return _allowed(choice)
    shown = f"'{kind[:40]}'" if isinstance(kind, str) else "without a name"
    raise _refused(f"'tool_choice' demands a tool of type {shown}, which this server does not have")


def _allowed(choice: dict[str, Any]) -> dict[str, Any]:
    """Those of the allowed tools that are functions."""
    tools = choice.get("tools")
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise _refused("'tool_choice.tools' must be a list of objects")
    functions = [one for one in tools if one.get("type") == "function"]
    if not functions:
        raise _refused("'tool_choice.tools' names no function, and other tools cannot be called here")
    named = [{"type": "function", "function": {"name": one.get("name")}} for one in functions]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": named}}


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="tool_choice", code="invalid_value")

"""Converts tools of a Messages request to chat tools."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.messages_client_tools import client_tool
from serving.gateway.api.tool_fields import DEFERRED
from serving.gateway.api.unknown_fields import printable

_MODES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class MessagesTools:
    """Tools and their use.

    Args:
        places: the chat's fields with the request's own, for errors.
        skipped: omitted tools, as named in the warning header.
        found: chat definitions, by name, of the tools whose definition is placed in a search result.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)


def messages_tools(tools: Sequence[object] | None, choice: object, referenced: Collection[str] = ()) -> MessagesTools:
    """The request's tools, including those of Anthropic's typed tools that the client runs.

    Tools that only Anthropic's servers run are omitted: agents send them to every server.

    Args:
        referenced: names in the conversation's search results. A tool with `defer_loading` among them is omitted from
            the start, because adding it would change the beginning of every later prompt.
    Raises: InvalidRequestError for an invalid tool, and for a choice that cannot be satisfied.
    """
    found = MessagesTools()
    absent: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for index, tool in enumerate(tools or ()):
        place = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise _wrong(place, "must be an object")
        function = client_tool(tool)
        if function is None and tool.get("type") not in (None, "custom"):
            found.skipped.append(f"{place} ({printable(str(tool['type']))})")
            if isinstance(name := tool.get("name"), str):
                absent[name] = found.skipped[-1]
            continue
        if function is None:
            function = {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
                "strict": tool.get("strict"),
            }
        ours = f"tools[{len(shown)}].function"
        found.places[f"{ours}.parameters"] = f"{place}.input_schema"
        found.places[ours] = place
        shown.append({"type": "function", "function": function})
        if tool.get("defer_loading") is True and isinstance(name := function["name"], str) and name in referenced:
            shown[-1][DEFERRED] = True
            found.found[name] = shown[-1]
    mode = _choice(choice)
    chosen = choice.get("name") if isinstance(choice, dict) else None
    demanded = [absent[chosen]] if isinstance(chosen, str) and chosen in absent else []
    if mode == "required" and not shown:
        demanded = found.skipped
    if demanded:
        raise _wrong("tool_choice", f"demands {', '.join(demanded)}, which only the provider's own servers can run")
    if shown:
        found.fields["tools"] = shown
    if mode is not None:
        found.fields["tool_choice"] = mode
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        found.fields["parallel_tool_calls"] = False
    return found


def _choice(choice: object) -> object:
    if choice is None:
        return None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if not isinstance(kind, str) or kind not in _MODES:
        raise _wrong("tool_choice", "must be an object of type auto, any, none, or tool with a name")
    return _MODES[kind]


def _wrong(place: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{place}' {words}", param=place, code="invalid_value")

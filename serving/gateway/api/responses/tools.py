"""Tools of a Responses request as tools of a chat request: functions, custom tools, and namespaces of both.

A namespace is flattened: its tools get names that are unique in the request, and calls are shown with the namespace and
the bare name. Tools are defined in `tools`, and in input items that add some. Agents send tools of every type that
their provider has. Unsupported tools are omitted and named in the warning header; the request is refused if it demands
their use.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.tools.tool_fields import DEFERRED
from serving.gateway.api.unknown_fields import printable

_MODES = ("none", "auto", "required")
_KINDS = ("function", "custom")
SEARCH = "tool_search"
"""The type, and the name, of a tool with which the client finds further tools."""
_PARTS = ("name", "description", "parameters", "strict", "format")
_NOT_OF_NAMES = re.compile(r"[^\w.:/-]")
_LONGEST_NAME = 128
_ADDING = ("additional_tools", "tool_search_output")
"""Items that add tools. Tools found by a search are defined at the search result, not at the head of the prompt."""

OwnName = tuple[str, str]
"""Namespace, empty if none, and name."""


@dataclass(slots=True)
class FlatNames:
    """Tool names shown to the model, and the client's names of the same tools.

    Args:
        searches: whether one of them finds further tools; its calls are items of their own.
    """

    flat: dict[OwnName, str] = field(default_factory=dict)
    own: dict[str, OwnName] = field(default_factory=dict)
    searches: bool = False
    _bare: dict[str, list[str]] = field(default_factory=dict)
    """Flat names by bare name."""
    _tried: dict[str, int] = field(default_factory=dict)
    """By beginning, the last number that was tried to make a name unique."""

    def add(self, own: OwnName) -> str:
        """Name a tool."""
        if own not in self.flat:
            flat = _joined(own)
            start = flat[: _LONGEST_NAME - 6]
            while flat in self.own:
                self._tried[start] = number = self._tried.get(start, 1) + 1
                flat = f"{start}_{number}"
            self.flat[own], self.own[flat] = flat, own
            self._bare.setdefault(own[1], []).append(flat)
        return self.flat[own]

    def of(self, namespace: str, name: str) -> str:
        """The flat name of a tool, known or not. Without a namespace, it is the only tool with that bare name."""
        if (found := self.flat.get((namespace, name))) is not None:
            return found
        alike = [] if namespace else self._bare.get(name, [])
        return alike[0] if len(alike) == 1 else _joined((namespace, name))


def _joined(own: OwnName) -> str:
    namespace, name = own
    if not namespace:
        return name
    joined = namespace + ("" if namespace.endswith("__") else "__") + name
    return _NOT_OF_NAMES.sub("_", joined)[-_LONGEST_NAME:]


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Tools of a request.

    Args:
        tools: in chat's form.
        places: path of each in the request.
        skipped: omitted tools, as named in the warning header.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    names: FlatNames = field(default_factory=FlatNames)

    def by_name(self) -> dict[str, dict[str, Any]]:
        """The tools by their flat names."""
        named = ((tool[tool["type"]].get("name"), tool) for tool in self.tools)
        return {name: tool for name, tool in named if isinstance(name, str)}

    def words(self) -> dict[str, str]:
        """The chat's fields with the request's own, for errors."""
        words: dict[str, str] = {}
        for index, place in enumerate(self.places):
            ours = f"tools[{index}]"
            words |= {
                ours: place,
                f"{ours}.function": place,
                f"{ours}.custom": place,
                f"{ours}.custom.format.grammar": f"{place}.format",
            }
        return words


@dataclass(frozen=True, slots=True)
class _Found:
    """A tool of a supported kind.

    Args:
        given: the tool itself.
        adds: an item of the input added it, so it may be repeated.
        deferred: its definition is placed where a search found it.
    """

    place: str
    given: Mapping[str, Any]
    namespace: str
    adds: bool
    deferred: bool

    @property
    def own(self) -> OwnName:
        name = SEARCH if self.given["type"] == SEARCH else self.given.get("name")
        return self.namespace, name if isinstance(name, str) else ""


def chat_tools(tools: Sequence[object], items: Sequence[tuple[str, object]] = ()) -> ChatTools:
    """Convert a request's tools.

    Args:
        tools: of the request itself.
        items: items of its conversation, each with its path.
    Raises: InvalidRequestError for an invalid tool.
    """
    chat = ChatTools()
    found = list(_found(tools, "tools", chat.skipped))
    for place, item in items:
        if isinstance(item, dict) and (kind := item.get("type")) in _ADDING:
            added = item.get("tools")
            if not isinstance(added, list):
                raise _wrong(f"{place}.tools", "must be a list of tools")
            found += _found(added, f"{place}.tools", chat.skipped, adds=True, deferred=kind == _ADDING[1])
    search = next((one for one in found if one.given["type"] == SEARCH), None)
    if search is not None and any(one.own == search.own for one in found if one is not search):
        chat.skipped.append(f"{search.place} ({SEARCH})")
        found.remove(search)
    chat.names.searches = search in found
    for one in found:
        if not one.namespace:  # a flattened name must not take the name of one of these
            chat.names.add(one.own)
    places: dict[OwnName, int] = {}
    for one in found:
        at = places.get(one.own)
        if at is None or not one.adds:
            places[one.own] = len(chat.tools)
            chat.tools.append(_chat_tool(one, chat.names.add(one.own)))
            chat.places.append(one.place)
        elif DEFERRED in chat.tools[at] or not one.deferred:  # the latest definition replaces the first, in its place
            chat.tools[at] = _chat_tool(one, chat.names.add(one.own))
            chat.places[at] = one.place
    return chat


def _found(
    tools: Sequence[object],
    path: str,
    skipped: list[str],
    namespace: str = "",
    *,
    adds: bool = False,
    deferred: bool = False,
) -> Iterator[_Found]:
    for index, tool in enumerate(tools):
        place = f"{path}[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(kind, str):
            raise _wrong(place, "must be an object with a 'type'")
        if kind in _KINDS or (kind == SEARCH and tool.get("execution") == "client" and not namespace):
            yield _Found(place, tool, namespace, adds, deferred)
        elif kind == "namespace" and not namespace:
            name, inner = tool.get("name"), tool.get("tools")
            if not isinstance(name, str) or not name or not isinstance(inner, list):
                raise _wrong(place, "must have a 'name' and a list of 'tools'")
            yield from _found(_introduced(inner, tool), f"{place}.tools", skipped, name, adds=adds, deferred=deferred)
        else:
            skipped.append(f"{place} ({printable(kind)})")


def _introduced(tools: Sequence[object], namespace: Mapping[str, Any]) -> list[object]:
    """Tools of a namespace. Its description is added to the first tool."""
    first, about = tools[0] if tools else None, namespace.get("description")
    if not isinstance(first, dict) or not isinstance(about, str) or not about:
        return list(tools)
    own = first.get("description")
    words = f"{namespace['name']}: {about}"
    return [{**first, "description": f"{own}\n\n{words}" if isinstance(own, str) and own else words}, *tools[1:]]


def _chat_tool(found: _Found, flat: str) -> dict[str, Any]:
    given = found.given
    if given["type"] == SEARCH:
        given = {**given, "type": "function", "name": SEARCH}
    inner = {name: given[name] for name in _PARTS if given.get(name) is not None}
    if isinstance(given.get("name"), str):
        inner["name"] = flat
    tool = {"type": given["type"], given["type"]: inner}
    if given["type"] == "custom" and isinstance(form := inner.get("format"), dict) and form.get("type") == "grammar":
        inner["format"] = {"type": "grammar", "grammar": {key: form[key] for key in form if key != "type"}}
    return {**tool, DEFERRED: True} if found.deferred else tool


def chat_choice(choice: object, found: ChatTools) -> object:
    """`tool_choice` in chat's form.

    Raises: InvalidRequestError for a choice of an unsupported tool.
    """
    if choice is None or choice in _MODES:
        if choice == "required" and not found.tools:
            raise _refused("'tool_choice' is \"required\", but no tool of the request can be called here")
        return choice
    if not isinstance(choice, dict):
        raise _refused(f"'tool_choice' must be one of {', '.join(_MODES)}, or an object")
    kind = choice.get("type")
    if kind in _KINDS and isinstance(choice.get("name"), str):
        return _named(choice, found.names)
    if kind == "allowed_tools":
        return _allowed(choice, found.names)
    shown = f"'{kind[:40]}'" if isinstance(kind, str) else "without a name"
    raise _refused(f"'tool_choice' demands a tool of type {shown}, which this server does not have")


def _named(choice: Mapping[str, Any], names: FlatNames) -> dict[str, Any]:
    kind, name, namespace = choice["type"], choice.get("name"), choice.get("namespace")
    flat = names.of(namespace if isinstance(namespace, str) else "", name) if isinstance(name, str) else name
    return {"type": kind, kind: {"name": flat}}


def _allowed(choice: dict[str, Any], names: FlatNames) -> dict[str, Any]:
    """The allowed tools that this server supports."""
    tools = choice.get("tools")
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise _refused("'tool_choice.tools' must be a list of objects")
    able = [one for one in tools if one.get("type") in _KINDS]
    if not able:
        raise _refused("'tool_choice.tools' names no function, and no other tools can be called here")
    named = [_named(one, names) for one in able]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": named}}


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="tool_choice", code="invalid_value")


def _wrong(place: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{place}' {words}", param=place, code="invalid_value")

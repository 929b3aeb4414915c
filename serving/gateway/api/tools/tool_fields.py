"""A request's tools and their use: OpenAI's `tools` and `tool_choice`, or the earlier `functions`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.schema import ChatCompletionRequest
from serving.gateway.api.tools.custom_tools import InputGrammar, custom_function, input_grammar
from serving.gateway.api.unknown_fields import printable

_NAME = re.compile(r"[\w.:/-]{1,128}")
_MODES = ("none", "auto", "required")
_KINDS = ("function", "custom")
DEFERRED = "cloudmatrix_deferred"
"""Key in a tool that another route has translated: its definition is within the conversation."""
_NO_OBJECT = "must be the schema of an object: arguments have names"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, or a custom tool, that the request offers.

    Args:
        field: name in the request, for errors.
        parameters: the schema of its arguments.
        strict: whether calls must match the schema exactly.
        shown: the definition given to the chat template.
        odd: whether its parameters are not the schema of an object: they do not constrain calls, and the request must
            not demand a call.
        custom: whether it is called with a text.
        grammar: grammar of that text; None = any.
        deferred: whether its definition is within the conversation, not before it.
    """

    field: str
    name: str
    parameters: Mapping[str, Any]
    strict: bool
    shown: Mapping[str, Any]
    odd: bool = False
    custom: bool = False
    grammar: InputGrammar | None = None
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a request.

    Args:
        offered: all tools that the model is shown.
        callable: the tools among them that it may call.
        forced: whether it must call one.
        several: whether it may call more than one.
        legacy: whether the request uses `functions`.
    """

    offered: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    forced: bool
    several: bool
    legacy: bool


def tool_use(body: ChatCompletionRequest) -> ToolUse | None:
    """Tools of a request; None if it offers none, or forbids their use.

    An unusable tool does not invalidate the others, unless the request demands its call.

    Raises: InvalidRequestError naming the field.
    """
    legacy = body.functions is not None or body.function_call is not None
    if legacy and (body.tools or body.tool_choice not in (None, "none")):
        raise _wrong("functions", "is the old name of 'tools': use only one of them")
    given, field = _given(body), "functions" if legacy else "tools"
    tools = tuple(given.tools)
    choice_field = "function_call" if legacy else "tool_choice"
    mode, names = _choice(body.function_call if legacy else body.tool_choice, choice_field, legacy=legacy)
    if not tools and (mode == "required" or names is not None):
        raise _wrong(choice_field, f"requires a call, but there are no '{field}'")
    known = {tool.name for tool in tools}
    for name in names or ():
        if name not in known:
            raise _wrong(choice_field, f"names the function '{name[:64]}', which '{field}' does not have")
    if mode == "none":
        return None
    if given.wrong and all(tool.odd for tool in tools):
        raise given.wrong[0]
    if not tools:
        return None
    chosen = known if names is None else frozenset(names)
    able = tuple(tool for tool in tools if tool.name in chosen)
    if mode == "required" and (odd := next((tool for tool in able if tool.odd), None)) is not None:
        raise _wrong(f"{odd.field}.parameters", _NO_OBJECT)
    choice = body.tool_choice
    one = legacy or (isinstance(choice, dict) and choice.get("type") in _KINDS)  # exactly one call, of that tool
    several = body.parallel_tool_calls is not False and not one
    return ToolUse(tools, able, mode == "required", several, legacy)


def ignored_in_tools(body: ChatCompletionRequest) -> tuple[str, ...]:
    """Ignored parts of a request's tools, for the warning header.

    Raises: as `tool_use`.
    """
    return tuple(_given(body).ignored) if body.tools or body.functions else ()


def _given(body: ChatCompletionRequest) -> "_Given":
    legacy = body.functions is not None or body.function_call is not None
    given = _Given("functions" if legacy else "tools", legacy=legacy)
    given.read(body.functions if legacy else body.tools)
    return given


def _wrong(field: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{field}' {words}", param=field, code="invalid_value")


class _Given:
    """Tools parsed so far."""

    def __init__(self, field: str, *, legacy: bool) -> None:
        self._field, self._legacy = field, legacy
        self.tools: list[Tool] = []
        self._names: set[str] = set()
        self.ignored: list[str] = []
        self.wrong: list[InvalidRequestError] = []
        """Errors of the unusable tools."""

    def read(self, given: Sequence[object] | None) -> None:
        """Raises: InvalidRequestError for an invalid tool."""
        for index, one in enumerate(given or ()):
            place = f"{self._field}[{index}]"
            if self._legacy:
                self._take(one, place)
                continue
            kind = one.get("type") if isinstance(one, dict) else None
            if kind in _KINDS and isinstance(one, dict):
                self._take(one.get(kind), f"{place}.{kind}", custom=kind == "custom", deferred=bool(one.get(DEFERRED)))
            elif isinstance(one, dict) and isinstance(kind, str):
                self.ignored.append(f"{place} ({printable(kind)})")
                self.wrong.append(_no_function(place))
            else:
                raise _no_function(place)

    def _take(self, one: object, place: str, *, custom: bool = False, deferred: bool = False) -> None:
        tool = replace(_custom(one, place) if custom else _function(one, place), deferred=deferred)
        if tool.name in self._names:
            raise _wrong(f"{place}.name", f"is a second tool named '{tool.name}'")
        self._names.add(tool.name)
        self.tools.append(tool)
        if tool.odd:
            self.ignored.append(f"{place}.parameters")
            self.wrong.append(_wrong(f"{place}.parameters", _NO_OBJECT))


def _no_function(place: str) -> InvalidRequestError:
    return _wrong(f"{place}.type", "must be 'function' or 'custom': this server has no tools of its own")


MOST_DEFINED = 1 << 20
"""Characters of definitions in search results of one conversation: a short reference may repeat a long definition."""


class Definitions:
    """Definitions of a request's tools, as search results show them to the model.

    Args:
        tools: chat definitions, by name.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._known: dict[str, str] = {}
        self._room = MOST_DEFINED

    def of(self, name: str) -> str | None:
        """A tool's definition, or only its name behind the first `MOST_DEFINED` characters; None if there is no such
        tool. Empty if it is invalid, which is reported when the request's tools are parsed."""
        if name not in self._tools:
            return None
        if name not in self._known:
            self._known[name] = _shown(self._tools[name])
        text = self._known[name]
        self._room -= len(text)
        return text if self._room >= 0 else name


def _shown(tool: Mapping[str, Any]) -> str:
    given = _Given("tools", legacy=False)
    try:
        given.read([tool])
    except InvalidRequestError:
        return ""
    return json.dumps(given.tools[0].shown, ensure_ascii=False)


def _name(given: object, place: str) -> tuple[dict[str, Any], str]:
    """A validated tool, and its name."""
    if not isinstance(given, dict):
        raise _wrong(place, "must be an object")
    name = given.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _wrong(f"{place}.name", "must be 1 to 128 letters, digits or any of _ - . : /")
    if not isinstance(given.get("description") or "", str):
        raise _wrong(f"{place}.description", "must be a text")
    return given, name


def _custom(given: object, place: str) -> Tool:
    given, name = _name(given, place)
    grammar = input_grammar(given.get("format"), place)
    function = custom_function(given, grammar)
    shown = {"type": "function", "function": function}
    return Tool(place, name, function["parameters"], True, shown, custom=True, grammar=grammar)


def _function(given: object, place: str) -> Tool:
    given, name = _name(given, place)
    parameters = given.get("parameters")
    schema = arguments_schema(parameters)
    if not isinstance(strict := given.get("strict") or False, bool):
        raise _wrong(f"{place}.strict", "must be true or false")
    if strict and schema is None:
        raise _wrong(f"{place}.parameters", _NO_OBJECT)
    odd, schema = schema is None, schema or {"type": "object", "properties": {}, "additionalProperties": True}
    shown = {key: value for key, value in given.items() if value is not None and key != "strict"}
    if odd or (parameters is not None and not _same(parameters, schema)):
        shown["parameters"] = schema
    return Tool(place, name, schema, strict, {"type": "function", "function": shown}, odd)


def _same(given: object, schema: Mapping[str, Any]) -> bool:
    """Whether conversion has not changed a schema, except for a missing type."""
    return isinstance(given, dict) and {"type": "object", **given} == schema


def _choice(choice: object, field: str, *, legacy: bool) -> tuple[str, tuple[str, ...] | None]:
    """Mode, and the functions that may be called; None = all."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        modes = _MODES[:2] if legacy else _MODES
        if choice not in modes:
            raise _wrong(field, f"must be one of {', '.join(modes)}, or an object that names a function")
        return choice, None
    if isinstance(choice, dict) and legacy and isinstance(choice.get("name"), str):
        return "required", (choice["name"],)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind in _KINDS:
        return "required", (_named(choice, field),)
    if isinstance(choice, dict) and kind == "allowed_tools":
        inner = choice.get("allowed_tools")
        mode, tools = (inner.get("mode", "auto"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            raise _wrong(f"{field}.allowed_tools", "must have a mode, auto or required, and tools, at least one")
        return mode, tuple(_named(one, f"{field}.allowed_tools") for one in tools)
    raise _wrong(field, f"must be one of {', '.join(_MODES)}, or an object of type function, custom or allowed_tools")


def _named(choice: object, field: str) -> str:
    kind = "custom" if isinstance(choice, dict) and choice.get("type") == "custom" else "function"
    inner = choice.get(kind) if isinstance(choice, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise _wrong(f"{field}.{kind}.name", "must be the name of a tool")
    return name


# Schemas of tools' arguments from clients: one type in a list, types in capitals, PHP's empty lists for objects.

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains",
    "propertyNames", "not", "if", "then", "else",
)  # fmt: skip


def arguments_schema(given: object) -> dict[str, Any] | None:
    """The schema as that of an object; None if it cannot be one."""
    if given is None:
        return {"type": "object", "properties": {}}
    if not isinstance(given, dict):
        return None
    schema = _plain(given)
    kind = schema.get("type")
    if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return None
    return {**schema, "type": "object"}


def loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema reduced to the names of its properties, for one that cannot be followed."""
    properties = schema.get("properties")
    return {"type": "object", "properties": {name: {} for name in properties or ()} if _is_object(properties) else {}}


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _plain(schema: Any) -> Any:  # noqa: ANN401
    """A schema with types in JSON Schema's spelling, otherwise unchanged. Other values are returned as they are."""
    if not isinstance(schema, dict):
        return schema
    plain = dict(schema)
    if "type" in schema:
        plain["type"] = _type(schema["type"])
    for name in _NAMED:
        if isinstance(inner := schema.get(name), dict):
            plain[name] = {key: _plain(value) for key, value in inner.items()}
        elif inner == []:
            plain[name] = {}
    for name in _LISTED:
        if isinstance(options := schema.get(name), list):
            plain[name] = [_plain(one) for one in options]
    for name in _SINGLE:
        if isinstance(inner := schema.get(name), list) and name == "items":
            plain[name] = [_plain(one) for one in inner]
        elif inner is not None:
            plain[name] = _plain(inner)
    return plain


def _type(kind: object) -> object:
    if isinstance(kind, str) and kind not in _TYPES and kind.lower() in _TYPES:
        return kind.lower()
    if not isinstance(kind, list):
        return kind
    kinds = [_type(one) for one in kind]
    return kinds[0] if len(kinds) == 1 else kinds

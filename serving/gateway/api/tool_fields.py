"""A request's tools and what it says of their use: OpenAI's `tools` and `tool_choice`, or `functions` of old."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.schema import ChatCompletionRequest

_NAME = re.compile(r"[\w.:/-]{1,128}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer.

    Args:
        field: of the request, for errors.
        parameters: the schema of its arguments.
        strict: the schema must be followed to the letter.
        shown: as the chat template sees it.
    """

    field: str
    name: str
    parameters: Mapping[str, Any]
    strict: bool
    shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a request.

    Args:
        offered: all that the model is shown.
        callable: those of them that it may call.
        forced: it must call one.
        several: it may call more than one.
        legacy: the caller speaks of functions.
    """

    offered: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    forced: bool
    several: bool
    legacy: bool


def tool_use(body: ChatCompletionRequest) -> ToolUse | None:
    """Tools of a request; None if it offers none, or forbids their use.

    Raises: InvalidRequestError naming the field.
    """
    legacy = body.functions is not None or body.function_call is not None
    if legacy and (body.tools or body.tool_choice not in (None, "none")):
        raise _wrong("functions", "is the old name of 'tools': use one of them")
    field = "functions" if legacy else "tools"
    tools = _tools(body.functions if legacy else body.tools, field, legacy=legacy)
    choice_field = "function_call" if legacy else "tool_choice"
    mode, names = _choice(body.function_call if legacy else body.tool_choice, choice_field, legacy=legacy)
    if not tools and (mode == "required" or names is not None):
        raise _wrong(choice_field, f"demands a call, and there are no '{field}'")
    for name in names or ():
        if all(tool.name != name for tool in tools):
            raise _wrong(choice_field, f"names the function '{name[:64]}', which '{field}' does not have")
    if not tools or mode == "none":
        return None
    able = tuple(tool for tool in tools if names is None or tool.name in names)
    choice = body.tool_choice
    one = legacy or (isinstance(choice, dict) and choice.get("type") == "function")  # that function is called, once
    several = body.parallel_tool_calls is not False and not one
    return ToolUse(tools, able, mode == "required", several, legacy)


def _wrong(field: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{field}' {words}", param=field, code="invalid_value")


def _tools(given: Sequence[object] | None, field: str, *, legacy: bool) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for index, one in enumerate(given or ()):
        place = f"{field}[{index}]"
        if not legacy:
            kind = one.get("type") if isinstance(one, dict) else None
            if kind != "function":
                raise _wrong(f"{place}.type", "must be 'function': this server has no tools of its own")
            one = one["function"] if isinstance(one, dict) and "function" in one else None
            place += ".function"
        tools.append(_function(one, place))
        if any(tool.name == tools[-1].name for tool in tools[:-1]):
            raise _wrong(f"{place}.name", f"is '{tools[-1].name}' a second time")
    return tuple(tools)


def _function(given: object, place: str) -> Tool:
    if not isinstance(given, dict):
        raise _wrong(place, "must be an object")
    name = given.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _wrong(f"{place}.name", "must be 1 to 128 letters, digits or signs of _ - . : /")
    if not isinstance(given.get("description") or "", str):
        raise _wrong(f"{place}.description", "must be a text")
    parameters = given.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong(f"{place}.parameters", "must be a JSON schema: an object")
    if (parameters or {}).get("type", "object") != "object":
        raise _wrong(f"{place}.parameters", "must be the schema of an object: arguments have names")
    if not isinstance(strict := given.get("strict") or False, bool):
        raise _wrong(f"{place}.strict", "must be true or false")
    shown = {key: value for key, value in given.items() if value is not None and key != "strict"}
    schema = {**(parameters or {"properties": {}}), "type": "object"}
    return Tool(place, name, schema, strict, {"type": "function", "function": shown})


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
    if isinstance(choice, dict) and kind == "function":
        return "required", (_named(choice, field),)
    if isinstance(choice, dict) and kind == "allowed_tools":
        inner = choice.get("allowed_tools")
        mode, tools = (inner.get("mode", "auto"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            raise _wrong(f"{field}.allowed_tools", "must have a mode, auto or required, and tools, at least one")
        return mode, tuple(_named(one, f"{field}.allowed_tools") for one in tools)
    raise _wrong(field, f"must be one of {', '.join(_MODES)}, or an object of type function or allowed_tools")


def _named(choice: object, field: str) -> str:
    inner = choice.get("function") if isinstance(choice, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise _wrong(f"{field}.function.name", "must be the name of a function")
    return name

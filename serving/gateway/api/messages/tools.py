"""Tools of a Messages request, as chat has them, and Anthropic's typed tools."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.tools.tool_fields import DEFERRED
from serving.gateway.api.unknown_fields import printable

# Converts tools of a Messages request to chat tools.

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


# Anthropic's typed tools that the client runs, with a schema for each type: shell, editor, computer, memory.

_TYPE = re.compile(r"(bash|text_editor|computer|memory)_(\d{8})")
_FIRST_BASED = 20250429
"""Date from which the editor has another name and no undo command."""
_NAMES = {"bash": "bash", "computer": "computer", "memory": "memory"}
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_POINT = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
_LINES = {**_POINT, "description": "First and last line; -1 = to the end."}
_FILE = {
    "path": {**_TEXT, "description": "Absolute path of the file or folder."},
    "file_text": {**_TEXT, "description": "For create: the whole text of the file."},
    "old_str": {**_TEXT, "description": "For str_replace: the text to replace, which occurs once."},
    "new_str": {**_TEXT, "description": "For str_replace: the text in its place."},
    "insert_line": {**_INTEGER, "description": "For insert: the line behind which it goes; 0 = the beginning."},
    "insert_text": {**_TEXT, "description": "For insert: the text."},
    "view_range": {**_LINES, "description": f"For view: {_LINES['description']}"},
}
_EDITS = ("view", "create", "str_replace", "insert")
_ACTIONS = (
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "screenshot", "cursor_position",
)  # fmt: skip
_ACTIONS_2025 = (
    *_ACTIONS, "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click",
)  # fmt: skip


def client_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """The function for a typed tool; None if the client does not run it, or its form is unknown."""
    found = _TYPE.fullmatch(str(tool.get("type")))
    if found is None:
        return None
    kind, date = found[1], int(found[2])
    usual = _NAMES.get(kind) or ("str_replace_based_edit_tool" if date >= _FIRST_BASED else "str_replace_editor")
    description, properties, required = _FORMS[kind](tool, date)
    return {
        "name": tool.get("name", usual),
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required},
        "strict": tool.get("strict"),
    }


_Form = tuple[str, dict[str, Any], list[str]]
"""Description, properties, and names of the required properties."""


def _bash(tool: Mapping[str, Any], date: int) -> _Form:
    command = {**_TEXT, "description": "The command to run; not needed to restart."}
    restart = {"type": "boolean", "description": "true = begin with a new shell."}
    return "Runs commands in a shell that stays open between calls.", {"command": command, "restart": restart}, []


def _editor(tool: Mapping[str, Any], date: int) -> _Form:
    commands = _EDITS if date >= _FIRST_BASED else (*_EDITS, "undo_edit")
    properties = {"command": {"enum": list(commands)}, **_FILE}
    return "Views, creates and edits text files.", properties, ["command", "path"]


def _memory(tool: Mapping[str, Any], date: int) -> _Form:
    moved = {name: {**_TEXT, "description": f"For rename: the {name[:3]} path."} for name in ("old_path", "new_path")}
    properties = {"command": {"enum": [*_EDITS, "delete", "rename"]}, **_FILE, **moved}
    return "Keeps what is to be remembered in files below /memories.", properties, ["command"]


def _computer(tool: Mapping[str, Any], date: int) -> _Form:
    actions = [*(_ACTIONS if date < 20250101 else _ACTIONS_2025), *(["zoom"] if tool.get("enable_zoom") else [])]
    properties = {
        "action": {"enum": actions},
        "coordinate": {**_POINT, "description": "x and y, in pixels from the left upper corner."},
        "text": {**_TEXT, "description": "The text to type, or the keys to press, such as ctrl+s."},
    }
    if date >= 20250101:
        properties |= {
            "start_coordinate": {**_POINT, "description": "For left_click_drag: where it begins."},
            "scroll_direction": {"enum": ["up", "down", "left", "right"]},
            "scroll_amount": {**_INTEGER, "minimum": 0},
            "duration": {"type": "number", "minimum": 0, "description": "For hold_key and wait, in seconds."},
        }
    if tool.get("enable_zoom"):
        properties["region"] = {"type": "array", "items": _INTEGER, "minItems": 4, "maxItems": 4}
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    size = f" of {width} x {height} pixels" if isinstance(width, int) and isinstance(height, int) else ""
    return f"Uses the mouse and the keyboard, and looks at the screen{size}.", properties, ["action"]


_FORMS = {"bash": _bash, "text_editor": _editor, "computer": _computer, "memory": _memory}

"""Anthropic's typed tools that the client runs, with a schema for each type: shell, editor, computer, memory."""

import re
from collections.abc import Mapping
from typing import Any

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

"""Tools of coding agents, as they send them."""

from serving.gateway.api.tools.custom_tools import custom_arguments

PATCH_GRAMMAR = """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Update File: " /(.+)/ LF line*
line: ("+" | "-" | " ") /(.*)/ LF -> change  // as it stands

%import common.LF
"""
PATCH = "*** Begin Patch\n*** Update File: a b.py\n-print(\"\\n\")\n+\tprint({1: 'é🙂'})\n*** End Patch\n"
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
          "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR}}  # fmt: skip
BASH = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}


def called(text: str) -> str:
    """An output that calls `apply_patch`."""
    return f'<tool_call>\n{{"name": "apply_patch", "arguments": {custom_arguments(text)}}}\n</tool_call>'

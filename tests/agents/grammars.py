"""Lark grammars that define the languages of Codex's custom tools, written anew."""

from collections.abc import Mapping

PATCH = r"""start: head change+ tail
head: "*** Begin Patch" LF
tail: "*** End Patch" LF?

change: create | remove | edit
create: "*** Add File: " path LF added+
remove: "*** Delete File: " path LF
edit: "*** Update File: " path LF moved? section?

path: /(.+)/
added: "+" /(.*)/ LF -> row

moved: "*** Move to: " path LF
section: (place | row)+ bottom?
place: ("@@" | "@@ " /(.+)/) LF
row: ("+" | "-" | " ") /(.*)/ LF
bottom: "*** End of File" LF

%import common.LF
"""
"""Patches of `apply_patch`."""
SCRIPT = r"""start: with_options | SOURCE
with_options: OPTIONS BREAK SOURCE
OPTIONS: /[ \t]*\/\/ @exec:[^\r\n]*/
BREAK: /\r?\n/
SOURCE: /[\s\S]+/
"""
"""JavaScript of `exec`, after an optional line of options."""
GRAMMARS: Mapping[str, str] = {"lark:patch": PATCH, "lark:script": SCRIPT}
"""By their mark in a recording."""

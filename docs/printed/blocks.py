"""Blocks of printed output in a page, by the name in the comment before them."""

import re
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<head><!-- printed: (?P<name>[\w ]+) -->\n+```\n)(?P<text>.*?)(?P<tail>^```)", re.DOTALL | re.MULTILINE
)


def shown(page: Path) -> dict[str, str]:
    """Texts of a page's blocks by name."""
    return {found["name"]: found["text"] for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def show(page: Path, name: str, text: str) -> bool:
    """Put a text into a page's block of this name, if the page has one.

    Returns: whether it has.
    Effects: writes the page.
    """
    old = page.read_text(encoding="utf-8")
    new = _BLOCK.sub(lambda found: found["head"] + text + found["tail"] if found["name"] == name else found[0], old)
    if new != old:
        page.write_text(new, encoding="utf-8")
    return name in shown(page)

"""JSON and TOML from outside, read to a bounded depth.

How deep a parser follows arrays within arrays before it gives up depends on the version of Python: 3.11 stops near a
thousand levels, 3.13 near ten thousand. What is refused must not depend on that, so the limit is ours.
"""

import json
import tomllib
from collections.abc import Callable
from typing import Any

LARGEST_DEPTH = 128
"""Arrays, objects and tables within one another; no file of ours has ten."""


class NestedTooDeeply(ValueError):
    """Arrays, objects or tables are nested deeper than `LARGEST_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {LARGEST_DEPTH} deep")


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401
    """The value of a JSON text.

    Raises: ValueError if it is no JSON, no UTF-8, or nested too deeply.
    """
    return _bounded(json.loads, text if isinstance(text, str) else text.decode())


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises: ValueError if it is no TOML, or nested too deeply, by brackets or by dots in a name.
    """
    tables: dict[str, Any] = _bounded(tomllib.loads, text)
    return tables


def _bounded(parse: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401
    """Parse, and refuse values nested too deeply. Raises: NestedTooDeeply; what `parse` raises."""
    try:
        value = parse(text)
    except RecursionError:
        raise NestedTooDeeply from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(LARGEST_DEPTH):
        if not level:
            return value
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, (dict, list))
        ]
    if level:
        raise NestedTooDeeply
    return value

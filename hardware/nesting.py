"""JSON and TOML from outside, read to a bounded depth.

How deep a parser follows arrays within arrays before it gives up depends on the version of Python: 3.11 stops near a
thousand levels, 3.13 near ten thousand. What is refused must not depend on that, so the limit is ours.
"""

import json
import tomllib
from array import array
from itertools import accumulate
from typing import Any

LARGEST_DEPTH = 128
"""Arrays, objects and tables within one another; no file of ours has ten."""


class NestedTooDeeply(ValueError):
    """Arrays, objects or tables lie more than `LARGEST_DEPTH` deep within one another."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {LARGEST_DEPTH} deep")


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401
    """The value of a JSON text.

    Raises: ValueError if it is no JSON, no UTF-8, or nested too deeply.
    """
    check_depth(text)
    return json.loads(text if isinstance(text, str) else text.decode())


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises: ValueError if it is no TOML, or nested too deeply, by brackets or by dots in a name.
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise NestedTooDeeply from None
    level: list[Any] = [tables]
    for _ in range(LARGEST_DEPTH):
        parts = (part for value in level for part in (value.values() if isinstance(value, dict) else value))
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return tables
    raise NestedTooDeeply


def check_depth(text: bytes | str) -> None:
    """See that a JSON text nests no deeper than it may; of one that is none, the brackets outside of quotes count.

    Nearly free for a text with few brackets, and cheaper than decoding for every other.
    Raises: NestedTooDeeply.
    """
    if isinstance(text, str):
        few = text.count("[") + text.count("{") <= LARGEST_DEPTH
    else:
        few = text.count(b"[") + text.count(b"{") <= LARGEST_DEPTH
    if not few and _depth(text) > LARGEST_DEPTH:
        raise NestedTooDeeply


def _depth(text: bytes | str) -> int:
    """How deep arrays and objects lie within one another; every step is one pass of C over the bytes."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    if b"\\" in text:  # so that each quote that is left begins or ends a string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _NO_MARKS).replace(b'""', b"")
    outside = b"".join(marks.split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS))), default=0)


_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = bytes(1 if byte in b"[{" else 0xFF for byte in range(256))
"""As signed bytes: a bracket that opens leads one level down, one that closes leads up."""

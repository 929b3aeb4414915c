"""JSON values of every depth, for the two families of packages that bound it."""

import json
from typing import Any

from hypothesis import strategies as st

TEXTS = st.text(st.sampled_from('a"\\[]{}:,é\n'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)
BRACKETS_IN_TEXT = [
    "[" * 1000,
    '"' + "[" * 1000,
    "\\" + "{" * 1000,
    '\\"' + "{" * 1000,
    "\\\\" + "[" * 1000 + '"',
    "é[" * 1000,
]
"""Strings that must not be taken for arrays."""


def depth(value: Any) -> int:
    """Nesting depth of arrays and objects."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0)


def wrapped(value: Any, levels: int) -> str:
    """JSON of a value inside this many arrays and objects, alternating."""
    opening = "".join('{"a":' if level % 2 else "[" for level in range(levels))
    closing = "".join("}" if level % 2 else "]" for level in reversed(range(levels)))
    return opening + json.dumps(value, ensure_ascii=False) + closing


def arrays(levels: int) -> str:
    """This many nested empty arrays."""
    return "[" * levels + "]" * levels

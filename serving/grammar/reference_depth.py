"""Nesting depth of a compiler that follows a schema's references recursively."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from serving.grammar.one_of import referred

_ROOT = "#"
_SHELVES = ("$defs", "definitions")
"""Keywords under which schemas only wait to be referred to."""


def reference_depth(root: Mapping[str, Any]) -> int:
    """Levels of JSON along the longest chain of references; where they form a circle, of all schemas together."""
    levels: dict[str, int] = {}
    named: dict[str, set[str]] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name in levels:
            continue
        schema = referred(name, root) if name != _ROOT else {k: v for k, v in root.items() if k not in _SHELVES}
        levels[name], named[name] = _look(schema)
        waiting += named[name]
    try:
        order = list(TopologicalSorter(named).static_order())  # referenced ones first
    except CycleError:
        return sum(levels.values())
    deepest: dict[str, int] = {}
    for name in order:
        deepest[name] = levels[name] + max([deepest[one] for one in named[name]], default=0)
    return deepest[_ROOT]


def _look(schema: object) -> tuple[int, set[str]]:
    """Levels of JSON in a schema, and the references in it."""
    deepest, references = 0, set()
    waiting = [(schema, 1)]
    while waiting:
        value, level = waiting.pop()
        deepest = max(deepest, level)
        if isinstance(value, Mapping):
            if isinstance(reference := value.get("$ref"), str):
                references.add(reference)
            waiting += [(one, level + 1) for one in value.values() if isinstance(one, Mapping | list)]
        elif isinstance(value, list):
            waiting += [(one, level + 1) for one in value if isinstance(one, Mapping | list)]
    return deepest, references

"""Conversion of arguments that a family writes as raw text to JSON values that match their schema."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hardware.nesting import parse_json

_NAMES = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling of JSON's constants."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_DEEP = 8
"""Levels of alternatives that are searched."""


def types_of(schema: object, root: Mapping[str, Any] | None = None, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema may allow; empty = any.

    Args:
        root: the schema that its references refer to.
    """
    if not isinstance(schema, Mapping) or depth > _DEEP:
        return frozenset()
    if isinstance(found := _referred(schema, root), Mapping):
        return types_of(found, root, depth + 1)
    if isinstance(kind := schema.get("type"), str):
        return frozenset({kind})
    if isinstance(kind, Sequence):
        return frozenset(one for one in kind if isinstance(one, str))
    for name in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(name), Sequence) and options:
            each = [types_of(one, root, depth + 1) for one in options]
            return frozenset().union(*each) if all(each) else frozenset()
    values: Sequence[object] = [schema["const"]] if "const" in schema else []
    if isinstance(options := schema.get("enum"), Sequence):
        values = options
    return frozenset(_TYPES.get(type(value), "null") for value in values)


def property_schema(parameters: Mapping[str, Any] | None, name: str) -> object:
    """Schema of one argument; None if there is none."""
    properties = (parameters or {}).get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of an argument that was written raw.

    Text stays a string if only a string is allowed, or if it spells no other allowed value.
    """
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    plain = text.strip()
    plain = _NAMES.get(plain, plain)
    try:
        value = parse_json(plain)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    kind = "null" if value is None else _TYPES[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types) or (kind == "number" and "integer" in types)
    if types and not fits and "string" in types:
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(text, ensure_ascii=False)
    return plain


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> object:
    place = schema.get("$ref")
    if not isinstance(place, str) or not place.startswith("#/"):
        return None
    found: object = root
    for step in place[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found

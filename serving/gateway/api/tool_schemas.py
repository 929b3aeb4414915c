"""Schemas of tools' arguments from clients: one type in a list, types in capitals, PHP's empty lists for objects."""

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains",
    "propertyNames", "not", "if", "then", "else",
)  # fmt: skip


def arguments_schema(given: object) -> dict[str, Any] | None:
    """The schema as that of an object; None if it cannot be one."""
    if given is None:
        return {"type": "object", "properties": {}}
    if not isinstance(given, dict):
        return None
    schema = _plain(given)
    kind = schema.get("type")
    if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return None
    return {**schema, "type": "object"}


def loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema reduced to the names of its properties, for one that cannot be followed."""
    properties = schema.get("properties")
    return {"type": "object", "properties": {name: {} for name in properties or ()} if _is_object(properties) else {}}


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _plain(schema: Any) -> Any:  # noqa: ANN401
    """A schema with types in JSON Schema's spelling, otherwise unchanged. Other values are returned as they are."""
    if not isinstance(schema, dict):
        return schema
    plain = dict(schema)
    if "type" in schema:
        plain["type"] = _type(schema["type"])
    for name in _NAMED:
        if isinstance(inner := schema.get(name), dict):
            plain[name] = {key: _plain(value) for key, value in inner.items()}
        elif inner == []:
            plain[name] = {}
    for name in _LISTED:
        if isinstance(options := schema.get(name), list):
            plain[name] = [_plain(one) for one in options]
    for name in _SINGLE:
        if isinstance(inner := schema.get(name), list) and name == "items":
            plain[name] = [_plain(one) for one in inner]
        elif inner is not None:
            plain[name] = _plain(inner)
    return plain


def _type(kind: object) -> object:
    if isinstance(kind, str) and kind not in _TYPES and kind.lower() in _TYPES:
        return kind.lower()
    if not isinstance(kind, list):
        return kind
    kinds = [_type(one) for one in kind]
    return kinds[0] if len(kinds) == 1 else kinds

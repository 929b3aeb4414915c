"""Schemas that no finite value follows, because what they demand leads back to themselves."""

from collections.abc import Iterable, Mapping
from typing import Any

from serving.grammar.one_of import referred

_MOST_STEPS = 20_000
"""Most schemas examined; larger inputs are not judged."""


def endless_reference(root: Mapping[str, Any]) -> str | None:
    """A reference of a schema that always leads back to itself; None where a finite value may follow it."""
    search = _Search(root)
    return search.reference if search.endless(root) else None


class _Search:
    """Search through the required parts of a value.

    Args:
        root: the schema that resolves references.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = _MOST_STEPS
        self._under_way = {"#"}
        self._finite: set[str] = set()
        self.reference: str | None = None

    def endless(self, schema: object) -> bool:
        """Whether a schema demands what is under way already."""
        self._steps -= 1
        if schema is False or not isinstance(schema, Mapping) or self._steps < 0:
            return False
        if "const" in schema or "enum" in schema:
            return False
        reference = schema.get("$ref")
        if isinstance(reference, str) and self._leads_back(reference):
            return True
        if any(self.endless(one) for one in _demanded(schema)):
            return True
        unions = [schema[name] for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)]
        return any(union and all(self.endless(one) for one in union) for union in unions)

    def _leads_back(self, reference: str) -> bool:
        if reference in self._finite:
            return False
        if reference in self._under_way:
            self.reference = reference
            return True
        self._under_way.add(reference)
        found = self.endless(referred(reference, self._root))
        self._under_way.remove(reference)
        if not found:
            self._finite.add(reference)
        return found


def _demanded(schema: Mapping[str, Any]) -> Iterable[object]:
    """Schemas that a value of this one always has a value of, but for references."""
    if isinstance(schema.get("allOf"), list):
        yield from schema["allOf"]
    kind = schema.get("type")
    required, properties, least = schema.get("required"), schema.get("properties"), schema.get("minItems")
    if kind == "object" and isinstance(required, list) and isinstance(properties, Mapping):
        yield from (properties[name] for name in required if isinstance(name, str) and name in properties)
    if kind == "array" and isinstance(least, int | float) and least >= 1 and not schema.get("prefixItems"):
        yield schema.get("items")

"""Checks whether the options of a `oneOf` are mutually exclusive, as far as the schema shows it.

llguidance treats `oneOf` as `anyOf`. Both are the same if no value matches two options: different types, different
constants, a property that one option requires and the other excludes. Options not proven exclusive may overlap.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from hardware.nesting import parse_json

_TYPES = frozenset(("null", "boolean", "string", "array", "object", "integer", "fraction"))
_DEPTH = 12
"""Most levels of references and properties that are followed."""
_MOST_STEPS = 20_000
"""Most schemas examined per `oneOf`: some milliseconds."""
_MOST_OPTIONS = 100
"""Options that are compared in pairs; constants may be more."""
_FORMATS = frozenset(("date", "time", "date-time", "uuid", "ipv4", "ipv6"))
"""Mutually exclusive formats: no text has two of them."""
_LEAST = {"string": "minLength", "array": "minItems", "integer": "minimum", "fraction": "minimum"}
_MOST = {"string": "maxLength", "array": "maxItems", "integer": "maximum", "fraction": "maximum"}
_EXCLUDING = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}


def overlapping(schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[int, int] | None:
    """First two options of a schema's `oneOf` that can both match; None if all are mutually exclusive.

    Args:
        root: the schema in which references are looked up.
    """
    return _Comparison(root).overlapping(schema)


@dataclass(slots=True)
class _Facts:
    """Facts that hold for all values of a schema.

    Args:
        values: all that there are, as JSON texts; None = not listed.
        names: of properties that an object may have; None = any.
        unions: lists of options of which one must hold.
    """

    types: frozenset[str] = _TYPES
    values: frozenset[str] | None = None
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[object]] = field(default_factory=dict)
    names: frozenset[str] | None = None
    formats: set[str] = field(default_factory=set)
    parts: list[Mapping[str, Any]] = field(default_factory=list)
    unions: list[list[object]] = field(default_factory=list)

    def take(self, schema: Mapping[str, Any]) -> None:
        """Add a schema object's own constraints."""
        self.parts.append(schema)
        self.types &= _types(schema.get("type"))
        for given in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
            if isinstance(given, list):
                values = frozenset(_text(value) for value in given)
                self.values = values if self.values is None else self.values & values
        required, properties = schema.get("required"), schema.get("properties")
        if isinstance(required, list):
            self.required |= {name for name in required if isinstance(name, str)}
        properties = properties if isinstance(properties, Mapping) else {}
        for name, one in properties.items():
            self.properties.setdefault(name, []).append(one)
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            names = frozenset(properties)
            self.names = names if self.names is None else self.names & names
        if schema.get("format") in _FORMATS:
            self.formats.add(schema["format"])
        self.unions += [schema[name] for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)]


class _Comparison:
    """Comparison of the options of one `oneOf`.

    Args:
        root: the schema in which references are looked up.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = _MOST_STEPS

    def overlapping(self, schema: Mapping[str, Any]) -> tuple[int, int] | None:
        """The first two options that can both match."""
        common = {name: value for name, value in schema.items() if name != "oneOf"}
        facts = [self._facts(option, common=common) for option in schema["oneOf"]]
        by_value: dict[str, int] = {}
        others: list[int] = []
        for index, one in enumerate(facts):
            if one.values is None:
                others.append(index)
                continue
            for value in one.values:
                seen = by_value.setdefault(value, index)
                if seen != index:
                    return seen, index
        if len(others) > _MOST_OPTIONS:
            return others[0], others[1]
        for place, index in enumerate(others):
            for second in [*others[place + 1 :], *sorted(set(by_value.values()))]:
                if not self._disjoint(facts[index], facts[second], _DEPTH):
                    return min(index, second), max(index, second)
        return None

    def _facts(self, schema: object, depth: int = _DEPTH, *, common: object = None) -> _Facts:
        facts = _Facts()
        self._gather(common, depth, facts)
        self._gather(schema, depth, facts)
        return facts

    def _gather(self, schema: object, depth: int, facts: _Facts) -> None:
        self._steps -= 1
        if schema is False:
            facts.types = frozenset()
        if not isinstance(schema, Mapping) or depth == 0 or self._steps < 0:
            return
        facts.take(schema)
        if isinstance(schema.get("allOf"), list):
            for one in schema["allOf"]:
                self._gather(one, depth - 1, facts)
        if isinstance(schema.get("$ref"), str):
            self._gather(referred(schema["$ref"], self._root), depth - 1, facts)

    def _disjoint(self, one: _Facts, other: _Facts, depth: int) -> bool:
        """Whether no value can match both. False if not known."""
        if depth == 0 or self._steps < 0:
            return False
        if not one.types & other.types:
            return True
        for a, b in ((one, other), (other, one)):
            if a.values is not None and all(not self._may_hold(parse_json(text), b, depth) for text in a.values):
                return True
            for union in a.unions:
                if all(self._disjoint(self._facts(option, depth - 1), b, depth - 1) for option in union):
                    return True
        return all(self._apart(kind, one, other, depth) for kind in one.types & other.types)

    def _apart(self, kind: str, one: _Facts, other: _Facts, depth: int) -> bool:
        """Whether two schemas have no value of a type in common."""
        if kind == "object":
            return self._objects_apart(one, other, depth)
        if kind == "string" and one.formats and other.formats and not one.formats & other.formats:
            return True
        if kind not in _LEAST:
            return False
        (low_a, high_a), (low_b, high_b) = _range(kind, one), _range(kind, other)
        return _below(high_a, low_b) or _below(high_b, low_a)

    def _objects_apart(self, one: _Facts, other: _Facts, depth: int) -> bool:
        for a, b in ((one, other), (other, one)):
            if b.names is not None and a.required - b.names:
                return True
        for name in sorted(one.required | other.required):
            for a_property in one.properties.get(name, ()):
                for b_property in other.properties.get(name, ()):
                    facts = [self._facts(schema, depth - 1) for schema in (a_property, b_property)]
                    if self._disjoint(facts[0], facts[1], depth - 1):
                        return True
        return False

    def _may_hold(self, value: Any, facts: _Facts, depth: int) -> bool:  # noqa: ANN401
        """Whether a value may be one of a schema's."""
        kind = _type_of(value)
        if depth == 0 or self._steps < 0:
            return True
        if kind not in facts.types or (facts.values is not None and _text(value) not in facts.values):
            return False
        for union in facts.unions:
            if not any(self._may_hold(value, self._facts(option, depth - 1), depth - 1) for option in union):
                return False
        if kind in _LEAST:
            size = float(len(value)) if isinstance(value, str | list) else value
            low, high = _range(kind, facts)
            if _below((size, False), low) or _below(high, (size, False)):
                return False
        if not isinstance(value, dict):
            return True
        if not facts.required <= value.keys() or (facts.names is not None and value.keys() - facts.names):
            return False
        return all(
            self._may_hold(own, self._facts(one, depth - 1), depth - 1)
            for name, own in value.items()
            for one in facts.properties.get(name, ())
        )


_Edge = tuple[float, bool] | None
"""A bound, and whether it is excluded."""


def _range(kind: str, facts: _Facts) -> tuple[_Edge, _Edge]:
    low: _Edge = None
    high: _Edge = None
    for schema in facts.parts:
        least, most = _edge(schema, _LEAST[kind]), _edge(schema, _MOST[kind])
        if least is not None and (low is None or least > low):
            low = least
        if most is not None and (high is None or (most[0], not most[1]) < (high[0], not high[1])):
            high = most
    return low, high


def _edge(schema: Mapping[str, Any], name: str) -> _Edge:
    bound, excluding = schema.get(name), schema.get(_EXCLUDING.get(name, ""))
    own = bound if _is_number(bound) else None
    if _is_number(excluding):
        if own is None or (excluding >= own if name == "minimum" else excluding <= own):
            return excluding, True
    return None if own is None else (own, excluding is True)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _below(high: _Edge, low: _Edge) -> bool:
    if high is None or low is None:
        return False
    return high[0] < low[0] or (high[0] == low[0] and (high[1] or low[1]))


def _types(given: object) -> frozenset[str]:
    if given is None:
        return _TYPES
    names = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
    found = {"integer" if name == "number" else name for name in names}
    return frozenset(found | ({"fraction"} if "number" in names else set()))


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _text(value: object) -> str:
    """A value's text, equal for equal values: 1 and 1.0 are."""
    plain = int(value) if isinstance(value, float) and value.is_integer() else value
    return json.dumps(plain, sort_keys=True)


def referred(reference: str, root: Mapping[str, Any]) -> object:
    """The schema of a reference within this document; None = not found.

    Args:
        root: the document.
    """
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: object = root
    for name in reference[2:].split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found

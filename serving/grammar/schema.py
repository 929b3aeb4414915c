"""JSON schemas as llguidance can follow them to the letter: what it would silently break is rewritten or refused.

An output that follows the rewritten schema follows the original one. The reverse need not hold: a few values near a
bound cannot be written, see `serving.grammar.numbers`.
"""

from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from serving.errors import GrammarError
from serving.grammar.numbers import check_value, sound_numbers
from serving.grammar.one_of import overlapping, referred
from serving.values.sequence import TOO_LARGE

MOST_ITEMS = 10_000
"""Most items or characters that a schema may require: responses are shorter, and llguidance gives up on more."""
MOST_DEPTH = 600
"""Levels of JSON along a schema's references.

llguidance follows them by recursion: a chain of 700 objects, 2,100 levels, is compiled in 0.15 s; one of 1,000
overflows the stack and ends the process.
"""
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONES = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_NOTES = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
_INTEGER = "integer of 64 bits"
"""Shared definition of all integers without bounds, compiled once."""

Schema = dict[str, Any]


def parts_of(schema: Mapping[str, Any], visit: Callable[[str, Any], Any]) -> Schema:
    """A schema object with each schema directly within it replaced; values of `const` and `enum` are none.

    Args:
        visit: from the keyword that it is under and the schema, what replaces it.
    """
    found = dict(schema)
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            found[name] = {key: visit(name, one) for key, one in value.items()}
        elif (name in _LISTS or name == "items") and isinstance(value, list):
            found[name] = [visit(name, one) for one in value]
        elif name in _ONES:
            found[name] = visit(name, value)
    return found


def sound_schema(schema: Mapping[str, Any]) -> Schema:
    """The schema that is compiled in place of a request's.

    Raises: GrammarError telling what cannot be followed to the letter.
    """
    if (depth := reference_depth(schema)) > MOST_DEPTH:
        raise GrammarError(f"{TOO_LARGE}its references lead {depth} levels deep; at most {MOST_DEPTH} are allowed")
    endless = endless_reference(schema)
    if endless is not None:
        raise GrammarError(f"no finite value can follow it: the reference '{endless[:80]}' always leads back to itself")
    definitions = schema.get("$defs", {})
    shared = isinstance(definitions, dict) and not _names_itself(schema)
    used = False

    def visit(_: str, one: Any) -> Any:  # noqa: ANN401
        nonlocal used
        if not isinstance(one, Mapping):
            return one
        if shared and one.get("type") == "integer" and all(name == "type" or name in _NOTES for name in one):
            used = True
            return {"$ref": f"#/$defs/{_INTEGER.replace(' ', '%20')}"}
        return parts_of(_sound(one, schema), visit)

    found = parts_of(_sound(schema, schema), visit)
    if used:
        found["$defs"] = {**found.get("$defs", {}), _INTEGER: sound_numbers({"type": "integer"})}
    return found


def closed_schema(schema: Any, *, named: bool = False, within: bool = False) -> Any:  # noqa: ANN401
    """The schema, in which objects that do not specify additional properties allow none.

    Objects whose properties other parts of the schema may add to stay open: closed ones would exclude each other.

    Args:
        named: objects of which no property is named stay open, too.
        within: it is one of several that hold together.
    """
    if not isinstance(schema, Mapping):
        return schema
    joined = any(_names_more(schema.get(name)) for name in _LISTS[:3]) or "$ref" in schema
    added_to = _joined_definitions(schema)

    def visit(name: str, one: Any) -> Any:  # noqa: ANN401
        together = (name == "allOf" and (len(schema["allOf"]) > 1 or "properties" in schema or within)) or (
            name in ("anyOf", "oneOf") and ("properties" in schema or within)
        )
        return closed_schema(one, named=named, within=together)

    closed = parts_of(schema, visit)
    for place in ("$defs", "definitions"):
        if isinstance(schema.get(place), Mapping):
            closed[place] = {
                key: closed_schema(one, named=named, within=f"#/{place}/{key}" in added_to)
                for key, one in schema[place].items()
            }
    open_ended = named and not schema.get("properties")
    if schema.get("type") == "object" and not within and not joined and not open_ended:
        if "additionalProperties" not in schema and "patternProperties" not in schema:
            closed["additionalProperties"] = False
    return closed


def _names_more(options: object) -> bool:
    """Whether subschemas that apply together with a schema may name further properties."""
    return isinstance(options, list) and any(
        isinstance(one, Mapping)
        and (
            any(name in one for name in ("properties", "patternProperties", "$ref"))
            or any(_names_more(one.get(name)) for name in _LISTS[:3])
        )
        for one in options
    )


def any_of_for_one_of(schema: Any) -> Any:  # noqa: ANN401
    """The schema, with `oneOf` read as `anyOf`: for what need not be followed to the letter."""
    if not isinstance(schema, Mapping):
        return schema
    found = parts_of(schema, lambda _, one: any_of_for_one_of(one))
    if "oneOf" in found and "anyOf" not in found:
        found = {"anyOf" if name == "oneOf" else name: value for name, value in found.items()}
    return found


def _sound(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Schema:
    """One schema object; those within it are left as they are."""
    if "const" in schema:
        check_value(schema["const"])
    if "enum" in schema:
        check_value(schema["enum"])
    _check_sizes(schema)
    if not isinstance(schema.get("oneOf"), list):
        return sound_numbers(schema)
    schema = _with_discriminator(schema)
    pair = overlapping(schema, root)
    if pair is not None:
        first, second = pair
        raise GrammarError(
            f"options {first} and {second} of 'oneOf' may both hold, which a grammar cannot exclude; tell them apart"
            " by a required property with another 'const' in each, or write 'anyOf'"
        )
    return sound_numbers(schema)


def _with_discriminator(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, with the property required that OpenAPI's `discriminator` names: some generators leave that out."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
    if not isinstance(name, str):
        return schema
    required = [{"allOf": [option, {"type": "object", "required": [name]}]} for option in schema["oneOf"]]
    return {**schema, "oneOf": required}


def _check_sizes(schema: Mapping[str, Any]) -> None:
    for name in ("minItems", "minLength", "minProperties"):
        least = schema.get(name)
        if isinstance(least, int | float) and least > MOST_ITEMS:
            raise GrammarError(f"'{name}' is more than {MOST_ITEMS}, which is more than an answer may hold")
    least, required = schema.get("minProperties"), schema.get("required")
    needed = len(set(required)) if isinstance(required, list) and all(isinstance(n, str) for n in required) else 0
    if isinstance(least, int | float) and least - needed > 1 and not _names_few(schema):
        raise GrammarError(
            "'minProperties' cannot be followed: properties of free names may repeat one name; list names in 'required'"
        )


def _names_few(schema: Mapping[str, Any]) -> bool:
    """Whether all properties are named, so that none can come twice."""
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _names_itself(schema: Any) -> bool:  # noqa: ANN401
    """Whether a part has an identifier, from which references within it count."""
    found = False

    def visit(_: str, one: Any) -> Any:  # noqa: ANN401
        nonlocal found
        found = found or (isinstance(one, Mapping) and _names_itself(one))
        return one

    parts_of(schema, visit)
    return found or "$id" in schema or "id" in schema


def _joined_definitions(schema: Any) -> set[str]:  # noqa: ANN401
    """References to definitions that hold together with something else."""
    found: set[str] = set()

    def search(one: Any, joined: bool) -> None:  # noqa: ANN401
        if not isinstance(one, Mapping):
            return
        alone = "properties" not in one
        if joined or not alone:
            if isinstance(one.get("$ref"), str):
                found.add(one["$ref"])
        several = isinstance(one.get("allOf"), list) and len(one["allOf"]) > 1

        def visit(name: str, part: Any) -> Any:  # noqa: ANN401
            in_place = name in ("allOf", "anyOf", "oneOf")
            search(part, in_place and (joined or not alone or (name == "allOf" and several)))
            return part

        parts_of(one, visit)

    search(schema, joined=False)
    return found


# Schemas that no finite value follows, because what they demand leads back to themselves.

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
        """Whether a schema requires, directly or through references, a schema that is being followed already."""
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
    """Schemas, other than references, of which each value of this schema contains or is a value."""
    if isinstance(schema.get("allOf"), list):
        yield from schema["allOf"]
    kind = schema.get("type")
    required, properties, least = schema.get("required"), schema.get("properties"), schema.get("minItems")
    if kind == "object" and isinstance(required, list) and isinstance(properties, Mapping):
        yield from (properties[name] for name in required if isinstance(name, str) and name in properties)
    if kind == "array" and isinstance(least, int | float) and least >= 1 and not schema.get("prefixItems"):
        yield schema.get("items")


# Nesting depth of a compiler that follows a schema's references recursively.

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

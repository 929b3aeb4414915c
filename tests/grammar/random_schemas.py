"""Random JSON schemas of common kinds, by seed: small, closed, and with outputs that end."""

import random
from typing import Any

_WORDS = ("name", "kind", "age", "tags", "is_new", "home-town", "größe", "x", "items", "note")
_FORMATS = ("date", "uuid", "ipv4", "time")


def random_schema(seed: int) -> dict[str, Any]:
    """An object with a few properties."""
    return _object(random.Random(seed), 2)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randrange(1, 5))
    required = [name for name in names if rng.random() < 0.7]
    properties = {name: _value(rng, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_text, _number, _choice, _format, _nullable, *([_list, _object, _either] if depth > 0 else [])]
    return rng.choice(kinds)(rng, depth)


def _text(rng: random.Random, _depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {
            "type": "string",
            "pattern": rng.choice(("^[a-z]{2,5}$", "^[0-9]{3}-[0-9]{2}$", "^(red|green) [A-F]+$")),
        }
    return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 12)}


def _number(rng: random.Random, _depth: int) -> dict[str, Any]:
    low = rng.randrange(-50, 50)
    return {"type": rng.choice(("integer", "number")), "minimum": low, "maximum": low + rng.randrange(1, 500)}


def _choice(rng: random.Random, _depth: int) -> dict[str, Any]:
    return {"enum": rng.sample(["red", "light blue", 3, None, True, "ü", 'a"b', -1.5], rng.randrange(1, 5))}


def _format(rng: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "string", "format": rng.choice(_FORMATS)}


def _nullable(rng: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": ["boolean", "null"]} if rng.random() < 0.5 else {"const": rng.choice(["yes", 7])}


def _list(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(2)
    return {"type": "array", "items": _value(rng, depth - 1), "minItems": least, "maxItems": least + rng.randrange(3)}


def _either(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth - 1), _object(rng, depth - 1)]}

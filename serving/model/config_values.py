"""Numbers of a `config.json`, within the ranges with which a model can be built. Imports no torch."""

import math
from collections.abc import Mapping

from serving.errors import ModelError

_LARGEST = 2**31 - 1
"""Largest count in the native library."""
_HUGE = 1e300
"""Beyond it a JSON integer may not even fit a float."""


def number(
    raw: Mapping[str, object], key: str, default: float | None = None, *, least: float = -math.inf, above: bool = False
) -> float:
    """A finite number; absent and null mean `default`.

    Args:
        least: smallest allowed value; with `above`, the value itself is excluded.
    Raises: KeyError without a value or default; TypeError if it is not a number; ModelError if it is out of range.
    """
    value = raw.get(key)
    if value is None:
        if default is None:
            raise KeyError(key)
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} = {value!r}")
    if not -_HUGE <= value <= _HUGE or value < least or (above and value == least):
        limit = "finite" if least == -math.inf else f"{'above' if above else 'at least'} {least:g}, and finite"
        raise ModelError(f"{key} = {value} must be {limit}")
    return value


def whole(raw: Mapping[str, object], key: str, default: int | None = None, *, least: int = 1) -> int:
    """A count; absent and null mean `default`.

    Raises: as `number`.
    """
    value = number(raw, key, default)
    if not least <= value <= _LARGEST or value != int(value):
        raise ModelError(f"{key} = {value} must be a whole number from {least} to {_LARGEST}")
    return int(value)

"""Checks that the hardware descriptions share."""

import math
from dataclasses import fields
from typing import Any

from hardware.errors import SpecError


def require_positive(spec: Any, *, allow_zero: tuple[str, ...] = ()) -> None:  # noqa: ANN401 - any spec dataclass
    """Every number of a description must be finite and above zero.

    Args:
        spec: a dataclass instance; fields that are not numbers are left alone.
        allow_zero: names of fields that may be zero.
    Raises: SpecError naming the first field that is not.
    """
    for field in fields(spec):
        value = getattr(spec, field.name)
        if not isinstance(value, int | float):
            continue
        lowest_ok = value >= 0 if field.name in allow_zero else value > 0
        if not (math.isfinite(value) and lowest_ok):
            kind = type(spec).__name__
            raise SpecError(f"{kind}.{field.name} is {value}; it must be a finite number above zero")

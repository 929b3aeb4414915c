"""Numbers of JSON schemas, as llguidance can follow them.

It keeps every bound in 64-bit floating point and writes integers in 64 bits. So integers beyond 2^53 would silently
become their neighbours, and a bound that is excluded would be allowed where both bounds have the same integer part.
Bounds are therefore moved inwards, to values that it keeps; what would be left without a value is refused.
"""

import math
from collections.abc import Mapping
from typing import Any

from serving.errors import GrammarError

EXACT = 1 << 53
"""Integers up to here are exact in 64-bit floating point."""
LARGEST = (1 << 63) - 1
"""Largest integer: the bound 2^63 is read as this one."""
SMALLEST = -((1 << 63) - (1 << 10))
"""Smallest integer: the next one in floating point, -2^63, is too large for llguidance without its sign."""
_NUDGE = 1e-9
"""Distance of the first allowed number from an excluded bound, if the other bound permits."""
_SHARE = 1e-6
"""The same as a share of the room between both bounds."""
_LARGEST_FLOAT = 9e18
"""Bounds of numbers beyond this have integer parts that llguidance cannot read."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_Bound = int | float


def check_value(value: object) -> None:
    """Check a value of `const` or `enum`.

    Raises: GrammarError for a number that would come out as another one.
    """
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            check_value(one)
    elif isinstance(value, float) and not math.isfinite(value):
        raise GrammarError("it has a number that JSON cannot write")
    elif isinstance(value, int) and abs(value) > EXACT and not (SMALLEST <= value < LARGEST and _float(value) == value):
        raise GrammarError(
            f"the integer {str(value)[:40]} is beyond 2^53 and cannot be kept exactly; write it as a string"
        )


def sound_numbers(schema: Mapping[str, Any]) -> dict[str, Any]:
    """One schema object with bounds that llguidance keeps, and integers of at most 64 bits.

    Raises: GrammarError if no number is left.
    """
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    integer = "integer" in kinds and "number" not in kinds
    given = [schema[name] for name in _BOUNDS if name in schema]
    if any(not isinstance(bound, int | float) for bound in given):
        return dict(schema)  # no bounds at all: llguidance reports it
    if any(isinstance(bound, float) and not math.isfinite(bound) for bound in given):
        raise GrammarError("it has a number that JSON cannot write")
    if not integer and not given:
        return dict(schema)
    if integer and not given and ("enum" in schema or "const" in schema):
        return dict(schema)
    least, above = _bound(schema, "minimum", "exclusiveMinimum", max)
    most, below = _bound(schema, "maximum", "exclusiveMaximum", min)
    rest = {name: value for name, value in schema.items() if name not in _BOUNDS}
    if integer:
        return rest | _integers(least, most, above=above, below=below)
    return rest | _numbers(least, most, above=above, below=below)


def _bound(schema: Mapping[str, Any], name: str, excluding: str, tighter: Any) -> tuple[_Bound | None, bool]:  # noqa: ANN401
    """The tighter of a bound and one that is excluded, and whether it is; `true` is how draft 4 excludes the bound."""
    bound, other = schema.get(name), schema.get(excluding)
    if isinstance(other, bool) or other is None:
        return bound, bool(other) and bound is not None
    if bound is None or tighter(bound, other) == other:
        return other, True
    return bound, False


def _integers(least: _Bound | None, most: _Bound | None, *, above: bool, below: bool) -> dict[str, int]:
    low = SMALLEST if least is None else math.floor(least) + 1 if above else math.ceil(least)
    high = LARGEST if most is None else math.ceil(most) - 1 if below else math.floor(most)
    if low > high:
        if least is None or most is None:
            raise GrammarError("it wants integers of more than 64 bits, which are not supported")
        raise GrammarError("no integer is within its bounds")
    low, high = max(low, SMALLEST), min(high, LARGEST)
    if low > high:
        raise GrammarError("it wants integers of more than 64 bits, which are not supported")
    kept_low, kept_high = low, high
    if abs(low) > EXACT:
        kept_low = int(_upwards(low))
    if abs(high) > EXACT and high != LARGEST:
        kept_high = -int(_upwards(-high))
    if kept_low > kept_high:
        raise GrammarError(f"its bounds leave integers near {low}, beyond 2^53, which cannot be kept exactly")
    return {"minimum": kept_low, "maximum": kept_high}


def _numbers(least: _Bound | None, most: _Bound | None, *, above: bool, below: bool) -> dict[str, _Bound]:
    if (least is not None and least > _LARGEST_FLOAT) or (most is not None and most < -_LARGEST_FLOAT):
        raise GrammarError(f"bounds of numbers beyond {_LARGEST_FLOAT:.0e} are not supported")
    low = None if least is None else max(least, -_LARGEST_FLOAT)
    high = None if most is None else min(most, _LARGEST_FLOAT)
    room = None if low is None or high is None else high - low
    if room is not None and (room < 0 or (room == 0 and (above or below))):
        raise GrammarError("no number is within its bounds")
    found: dict[str, _Bound] = {}
    if low is not None:
        if above and low >= 0 and low == math.floor(low):
            found["minimum"] = _behind(low, room)
        else:
            found["exclusiveMinimum" if above else "minimum"] = low
    if high is not None:
        if below and high <= 0 and high == math.floor(high):
            found["maximum"] = -_behind(-high, room)
        else:
            found["exclusiveMaximum" if below else "maximum"] = high
    return found


def _behind(bound: _Bound, room: float | None) -> float:
    step = _NUDGE if room is None else min(_NUDGE, room * _SHARE)
    return max(bound + step, math.nextafter(bound, math.inf))


def _upwards(value: int) -> float:
    """The least floating-point number that is not below an integer."""
    found = float(value)
    return found if int(found) >= value else math.nextafter(found, math.inf)


def _float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None

"""The parts of a scenario file that name faults directly: `[[fault]]` tables at fixed times, and `[rates]`.

[[fault]]
at_s = 600
kind = "npu"
target = "n3.npu5"
duration_s = 900        # optional: the kind's usual duration; inf = not repaired
factor = 0              # optional: the kind's usual strength

[rates]
published = 100         # optional: all published rates times this
straggler = 0.01        # a kind's rate, per unit and hour
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.faults.rates import DURATIONS, STRENGTHS, FaultRates
from hardware.units import Seconds

_KEYS = ("at_s", "kind", "target", "duration_s", "factor")
_NEEDED = ("at_s", "kind")
_PUBLISHED = "published"
NO_FAULTS = FaultRates().scaled(0.0)


def faults_from(entries: object, origin: str, duration: Callable[[str], float] | None = None) -> tuple[Fault, ...]:
    """The parsed `[[fault]]` tables as faults.

    Args:
        origin: source of the tables, for messages.
        duration: reads a text such as "10min" as seconds, and raises ValueError; without it, times are numbers.
    Returns: faults in order of time.
    Raises: SpecError, one line with the origin, the number of the fault and the remedy.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise SpecError(f"{origin}: write each fault as a table of its own: [[fault]]")
    faults = []
    for number, entry in enumerate(entries, start=1):
        try:
            faults.append(_fault(entry, duration))
        except SpecError as error:
            raise SpecError(f"{origin}: fault {number}: {error}") from error
    return tuple(sorted(faults, key=lambda fault: fault.order))


def rates_from(table: object, origin: str) -> FaultRates:
    """The parsed `[rates]` table: 0 for every kind that it does not name.

    Raises: SpecError, one line.
    """
    kinds = [kind.value for kind in FaultKind]
    if not isinstance(table, Mapping):
        raise SpecError(f"{origin}: [rates] must be a section of kinds and numbers")
    try:
        for name in table:
            if name != _PUBLISHED and name not in kinds:
                raise SpecError(f"unknown kind {name!r}{_nearest(str(name), kinds)}; kinds are {', '.join(kinds)}")
        rates = FaultRates().scaled(_number(table, _PUBLISHED, 0.0))
        return replace(rates, **{name: _number(table, name, 0.0) for name in table if name != _PUBLISHED})
    except SpecError as error:
        raise SpecError(f"{origin}: [rates] {error}") from error


def _fault(entry: object, duration: Callable[[str], float] | None) -> Fault:
    if not isinstance(entry, Mapping):
        raise SpecError(f"{entry!r} is no table; keys are {', '.join(_KEYS)}")
    for name in entry:
        if name not in _KEYS:
            raise SpecError(f"unknown key {name!r}{_nearest(str(name), _KEYS)}; keys are {', '.join(_KEYS)}")
    missing = [name for name in _NEEDED if name not in entry]
    if missing:
        raise SpecError(f"{missing[0]} is missing")
    kind = _kind(entry["kind"])
    target = entry.get("target", "")
    if not isinstance(target, str):
        raise SpecError(f"target is {target!r}; it must be a name in quotes")
    return Fault(
        at_s=Seconds(_number(entry, "at_s", 0.0, duration)),
        kind=kind,
        target=target,
        duration_s=Seconds(_number(entry, "duration_s", DURATIONS[kind].value, duration)),
        factor=_number(entry, "factor", STRENGTHS[kind].value),
    )


def _kind(value: object) -> FaultKind:
    names = [kind.value for kind in FaultKind]
    if value not in names:
        raise SpecError(f"unknown kind {value!r}{_nearest(str(value), names)}; kinds are {', '.join(names)}")
    return FaultKind(str(value))


def _number(entry: Mapping[str, Any], name: str, default: float, read: Callable[[str], float] | None = None) -> float:
    value = entry.get(name, default)
    if isinstance(value, str) and read is not None:
        try:
            return read(value)
        except ValueError as error:
            raise SpecError(f"{name}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"{name} is too large") from None


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {close[0]!r}?" if close else ""

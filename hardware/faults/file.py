"""A fault schedule as a file: TOML with `[[fault]]` tables, or JSON with the same under `"fault"`.

[[fault]]
at_s = 600
kind = "npu"
target = "n3.npu5"
duration_s = 900        # optional: the kind's usual duration; inf = not repaired
factor = 0              # optional: the kind's usual strength
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.errors import SpecError
from hardware.faults.fault import Fault, FaultKind
from hardware.faults.rates import DURATIONS, STRENGTHS
from hardware.faults.units import FaultUnits
from hardware.nesting import parse_json, parse_toml
from hardware.regular_file import read_regular_text
from hardware.units import Seconds

_KEYS = ("at_s", "kind", "target", "duration_s", "factor")
_NEEDED = ("at_s", "kind", "target")


def read_faults(
    path: str | Path, units: FaultUnits | None = None, duration: Callable[[str], float] | None = None
) -> tuple[Fault, ...]:
    """Reads a schedule; `.json` is JSON, anything else TOML.

    Args:
        units: what exists; without it, only the form of the targets is checked.
        duration: reads a text such as "10min" as seconds, and raises ValueError; without it, times are numbers.
    Returns: faults in order of time.
    Raises: SpecError, one line with the file, the number of the fault and what to write instead.
    Effects: reads the file.
    """
    file = Path(path)
    try:
        text = read_regular_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{file}: cannot read the fault schedule: {reason}") from error
    try:
        table = parse_json(text) if file.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        raise SpecError(f"{file}: the fault schedule is no {file.suffix.lstrip('.') or 'TOML'}: {error}") from error
    return faults_from(table, str(file), units, duration)


def faults_from(
    table: object, origin: str, units: FaultUnits | None = None, duration: Callable[[str], float] | None = None
) -> tuple[Fault, ...]:
    """A parsed schedule as faults.

    Args:
        table: `{"fault": [{...}, ...]}`.
        origin: where it comes from, for messages.
        units, duration: as `read_faults`.
    Returns: faults in order of time.
    Raises: SpecError, one line.
    Effects: none.
    """
    if not isinstance(table, Mapping) or set(table) - {"fault"}:
        raise SpecError(f"{origin}: a fault schedule has [[fault]] tables and nothing else")
    entries = table.get("fault", [])
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise SpecError(f"{origin}: write each fault as a table of its own: [[fault]]")
    faults = []
    for number, entry in enumerate(entries, start=1):
        try:
            fault = _fault(entry, duration)
            if units is not None:
                units.require(fault)
        except SpecError as error:
            raise SpecError(f"{origin}: fault {number}: {error}") from error
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.order))


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
    if not isinstance(entry["target"], str):
        raise SpecError(f"target is {entry['target']!r}; it must be a name in quotes")
    return Fault(
        at_s=Seconds(_number(entry, "at_s", 0.0, duration)),
        kind=kind,
        target=entry["target"],
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

"""Converts one TOML value to the type that a key declares, or reports precisely why it cannot.

TOML already distinguishes integers, floats, booleans, strings and lists, so no type is guessed: `port = "8000"` and
`replicas = true` are mistakes, while an integer is accepted as a float. A key with a unit as suffix also accepts a text
with a unit: `drain_s = "1min"`, `ub_memory_mib = "2GiB"`.
"""

import math
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from loadgen.quantities import parse_duration, parse_size
from serving.config.key import KeySpec
from serving.errors import ConfigError

_WANTED: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path in quotes",
    tuple: "a list of texts in quotes",
}

_SHARES = float | tuple[float, ...]
"""A number, or a nonempty list of numbers."""
_DURATION_NAME = re.compile(r"(.*(?<!per)_)?s")
_SIZE_NAME = re.compile(r"(?:.*_)?(kib|mib|gib|bytes)")
_SIZE_UNITS = {"kib": "KiB", "mib": "MiB", "gib": "GiB", "bytes": "B"}


def with_unit(where: str, name: str, value: object) -> object:
    """Convert a text with a unit to the number in the key's unit; return any other value unchanged.

    Args:
        where: as for `convert`.
        name: the key's name; its suffix is the unit: `_s`, `_kib`, `_mib`, `_gib`, `_bytes`.
    Raises: ConfigError if it is not a duration or size that such a key accepts.
    """
    size = _SIZE_NAME.fullmatch(name)
    if not isinstance(value, str) or not (size or _DURATION_NAME.fullmatch(name)):
        return value
    try:
        if size:
            return parse_size(value, plain=None, unit=_SIZE_UNITS[size[1]])
        return parse_duration(value, plain=None)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; or a number without quotes, in the unit of the key's name") from None


def convert(where: str, value: object, hint: Any, spec: KeySpec) -> Any:  # noqa: ANN401 - the type is a value here
    """Check and convert one value.

    Args:
        where: file, section and key, for the message: "small.toml: [gateway] port".
        value: from `tomllib`.
        hint: the key's declared type: bool, int, float, str, Path, a Literal of texts, a StrEnum, tuple[str, ...], or
            `_SHARES`.
        spec: limits of the key.
    Returns: the value in the declared type.
    Raises: ConfigError if the type is wrong, the number out of range, or the text not one of the choices.
    """
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            raise ConfigError(f"{where} = {_show(value)} must be one of {', '.join(map(_show, choices))}")
        return value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if not isinstance(value, str) or value not in list(hint):
            raise ConfigError(f"{where} = {_show(value)} must be one of {', '.join(map(_show, hint))}")
        return hint(value)
    if hint == _SHARES:
        if isinstance(value, list) and value:
            return tuple(convert(where, one, float, spec) for one in value)
        hint = float
    kind = get_origin(hint) or hint
    if not _MATCHES[kind](value):
        raise ConfigError(f"{where} = {_show(value)} must be {_WANTED[kind]}")
    _check_range(where, value, spec)
    if kind is tuple:
        return _texts(where, value)
    return kind(value)


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_MATCHES: dict[object, Callable[[object], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    Path: lambda value: isinstance(value, str) and value != "",
    tuple: _is_text_list,
}


def _texts(where: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - narrowed by _is_text_list
    """Refuse an empty text in a list: it is always a mistake, and as an API key it would admit every client."""
    if "" in value:
        raise ConfigError(f"{where} holds an empty string: remove it")
    return tuple(value)


def _check_range(where: str, value: object, spec: KeySpec) -> None:
    if isinstance(value, str | list):
        if spec.low is not None and len(value) < spec.low:
            raise ConfigError(f"{where} must not be empty")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = spec.low, spec.high
        # Tests for inside the range, not outside: NaN compares false with every number and is refused.
        if not ((low is None or value >= low) and (high is None or value <= high)) or value == math.inf:
            raise ConfigError(f"{where} = {value} must be {describe_range(spec)}")


def describe_range(spec: KeySpec) -> str:
    """The allowed numbers as text: "between 1 and 65535", "at least 1"."""
    if spec.low is not None and spec.high is not None:
        return f"between {spec.low:g} and {spec.high:g}"
    if spec.low is not None:
        return f"at least {spec.low:g}"
    if spec.high is not None:
        return f"at most {spec.high:g}"
    return "a number"


def _show(value: object) -> str:
    """A value in TOML, cut to one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

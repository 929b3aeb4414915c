"""One grammar of durations and sizes for every flag and configuration key: `500ms`, `1h30m`, `1.5GiB`.

Has no imports from this project, so that the server's commands read them by the same rules.

    quantity = number unit {[blank] number unit}, the larger unit first    or a plain number, where one is understood
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

DURATION_UNITS: Final = {
    "d": Decimal(86_400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "min": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
}
"""Seconds."""
SIZE_UNITS: Final = {
    "TiB": Decimal(1 << 40),
    "TB": Decimal(10**12),
    "GiB": Decimal(1 << 30),
    "GB": Decimal(10**9),
    "MiB": Decimal(1 << 20),
    "MB": Decimal(10**6),
    "KiB": Decimal(1 << 10),
    "kB": Decimal(10**3),
    "KB": Decimal(10**3),
    "B": Decimal(1),
}
"""Bytes."""
LONGEST_S: Final = 1e9
"""More than thirty years: a larger duration is a slip."""
LARGEST_BYTES: Final = 1 << 60

_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE]([+-]?[0-9]{1,2}))?\s*([A-Za-zµ]*)\s*")
_DURATION_HELP = "a number and a unit of us, ms, s, min (or m), h or d, or several, e.g. 500ms, 90s, 1h30m"
_SIZE_HELP = "a number and a unit of B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, e.g. 512MiB, 1.5GiB"
_NAMES = {"s": "seconds", "ms": "milliseconds", "B": "bytes"}


def parse_duration(text: str, *, plain: str | None = "s") -> float:
    """A duration [s]: `90s`, `500ms`, `1h30m`, `2 min 5 s`.

    Args:
        plain: unit of a number without one; None = a unit is required.
    Raises: ValueError, one line: the input, the valid forms, an example.
    """
    value = _sum(text, DURATION_UNITS, plain)
    if value is None or value > LONGEST_S:
        raise ValueError(f"{text!r} is no duration: write {_DURATION_HELP}{_plain_help(plain)}")
    return float(value)


def parse_size(text: str, *, plain: str | None = "B", unit: str = "B") -> int:
    """A size, in whole multiples of a unit: `512MiB`, `1.5GiB`, `64kB`.

    Args:
        plain: unit of a number without one; None = a unit is required.
        unit: unit of the result.
    Raises: ValueError, one line: the input, the valid forms, an example.
    """
    value = _sum(text, SIZE_UNITS, plain)
    if value is None or value > LARGEST_BYTES:
        raise ValueError(f"{text!r} is no size: write {_SIZE_HELP}{_plain_help(plain)}")
    count = value / SIZE_UNITS[unit]
    if count != int(count):
        raise ValueError(f"{text!r} is no whole number of {_NAMES.get(unit, unit)}")
    return int(count)


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration as an argparse `type`; flags have it in seconds.

    Args:
        plain: unit of a number without one.
        above_zero: whether 0 is refused.
    """

    plain: str = "s"
    above_zero: bool = False

    def __call__(self, text: str) -> float:
        """The duration [s]. Raises: argparse.ArgumentTypeError."""
        try:
            value = parse_duration(text, plain=self.plain)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if self.above_zero and not value:
            raise argparse.ArgumentTypeError(f"{text!r} is no duration above 0, e.g. 500ms, 90s, 1h30m")
        return value


@dataclass(frozen=True, slots=True)
class Size:
    """A size as an argparse `type`.

    Args:
        unit: what the flag's value counts, and a number without a unit means.
        above_zero: whether 0 is refused.
    """

    unit: str = "B"
    above_zero: bool = False

    def __call__(self, text: str) -> int:
        """The size in `unit`. Raises: argparse.ArgumentTypeError."""
        try:
            value = parse_size(text, plain=self.unit, unit=self.unit)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if self.above_zero and not value:
            raise argparse.ArgumentTypeError(f"{text!r} is no size above 0, e.g. 512MiB, 1.5GiB")
        return value


def _sum(text: str, units: Mapping[str, Decimal], plain: str | None) -> Decimal | None:
    """The parts of a quantity together; None if it is none, exact otherwise."""
    total, at, previous = Decimal(0), 0, None
    text = text.strip()
    while at < len(text) or previous is None:
        found = _PART.match(text, at)
        if found is None:
            return None
        number, exponent, unit = found.groups()
        alone = at == 0 and found.end() == len(text)
        factor = units.get(unit or plain or "") if unit or alone else None
        if factor is None or (previous is not None and factor >= previous):
            return None
        total += Decimal(f"{number}e{exponent or 0}") * factor
        at, previous = found.end(), factor
    return total


def _plain_help(plain: str | None) -> str:
    return "" if plain is None else f"; a number without a unit is {_NAMES.get(plain, plain)}"

"""Quantities of the virtual hardware: what a number means, and how to print it.

Seconds and bytes are used everywhere inside; milliseconds exist only on the wire. The types are `NewType`s over
`float` and `int`: functions accept the plain number (every `Bytes` is an `int`) and return the named quantity, so a
caller never wraps a literal, while a swapped result is a type error.
"""

from typing import NewType

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", int)
Flops = NewType("Flops", float)
"""Floating-point or integer operations; one multiply-accumulate counts as two."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

GIGA = 1_000_000_000
TERA = 1_000_000_000_000

MICROSECOND = 1e-6
MILLISECOND = 1e-3


def gbps_to_bytes_per_s(gigabits_per_s: float) -> float:
    """Line rate in gigabits per second (decimal, as links are sold) as bytes per second."""
    return gigabits_per_s * GIGA / 8


def format_bytes(nbytes: int) -> str:
    """Bytes for a person: the largest binary unit that keeps the number at 1 or more.

    Args:
        nbytes: any count; a negative one keeps its sign.
    Returns: "512 B", "1.5 KiB", "128 MiB".
    """
    size = abs(nbytes)
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{_trim(nbytes / scale)} {unit}"
    return f"{nbytes} B"


def _trim(value: float) -> str:
    """Two decimals at most, without trailing zeros."""
    text = f"{value:.2f}"
    return text.rstrip("0").rstrip(".")

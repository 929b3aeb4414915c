"""Values as people type them: `KEY=VALUE`, `1,2,4`, `10%`. Each parser is an argparse `type`.

Durations and sizes are in `loadgen.quantities`.
"""

import argparse
import math

from loadgen import json_text
from loadgen.errors import NOT_JSON
from loadgen.quantities import Duration

_STEP = Duration(above_zero=True)


def rate(text: str) -> float:
    """Requests per second, positive; `inf` = all at once, as `vllm bench serve` has it.

    Raises: argparse.ArgumentTypeError.
    """
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write requests per second, e.g. 4 or 0.5, or inf")
    return value


def positive_float(text: str) -> float:
    """A finite number above zero.

    Raises: argparse.ArgumentTypeError.
    """
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def burstiness(text: str) -> float:
    """Shape of the gamma distribution of gaps, above zero; `inf` = equal gaps.

    Raises: argparse.ArgumentTypeError.
    """
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no burstiness; 1 = Poisson, below 1 = bursts, inf = equal gaps")
    return value


def share(text: str) -> float:
    """A share between 0 and 1, or a percentage such as `10%`.

    Raises: argparse.ArgumentTypeError.
    """
    value = _number(text[:-1]) / 100 if text.endswith("%") else _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write 0.1 or 10%")
    return value


def count(text: str) -> int:
    """A whole number above zero.

    Raises: argparse.ArgumentTypeError.
    """
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def whole(text: str) -> int:
    """A whole number, zero allowed.

    Raises: argparse.ArgumentTypeError.
    """
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def numbers(text: str) -> list[float]:
    """Ascending positive numbers: `1,2,4`.

    Raises: argparse.ArgumentTypeError.
    """
    found = sorted({positive_float(part) for part in text.split(",") if part.strip()})
    if not found:
        raise argparse.ArgumentTypeError("no values given; write 1,2,4")
    return found


def percentiles(text: str) -> list[float]:
    """Percentiles between 0 and 100: `50,90,99.9`.

    Raises: argparse.ArgumentTypeError.
    """
    found = sorted({_number(part) for part in text.split(",") if part.strip()})
    if not found or not all(0 <= percentile <= 100 for percentile in found):
        raise argparse.ArgumentTypeError(f"{text!r} are no percentiles; write 50,90,99")
    return found


def rate_steps(text: str) -> list[tuple[float, float]]:
    """Rates with how long each holds [s]: `2:30s,8:1m`.

    Raises: argparse.ArgumentTypeError.
    """
    steps = []
    for part in text.split(","):
        step_rate, colon, duration = part.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(f"{part!r} is no step; write RATE:DURATION, e.g. 2:30s,8:30s")
        steps.append((positive_float(step_rate), _STEP(duration)))
    return steps


def key_value(text: str) -> tuple[str, str]:
    """`KEY=VALUE`.

    Raises: argparse.ArgumentTypeError.
    """
    key, equals, value = text.partition("=")
    if not (equals and key.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} has no '='; write KEY=VALUE")
    return key.strip(), value.strip()


def add_pairs(group: "argparse._ArgumentGroup", flag: str, help: str) -> None:
    """A flag of several `KEY=VALUE`, which may be given several times."""
    group.add_argument(flag, type=key_value, nargs="*", action="extend", default=[], metavar="K=V", help=help)


def json_object(text: str) -> dict[str, object]:
    """A JSON object.

    Raises: argparse.ArgumentTypeError.
    """
    try:
        return json_text.decode(text, dict[str, object])
    except NOT_JSON as error:
        raise argparse.ArgumentTypeError(f"not a JSON object ({error}); write '{{\"top_k\": 20}}'") from None


def _number(text: str) -> float:
    """A number, or nan which passes no check."""
    try:
        return float(text)
    except ValueError:
        return math.nan

"""Lengths in tokens: a distribution clipped to what is possible, and how people write one.

128                  always 128
uniform:64-256       equally likely, both ends included
normal:512,64        mean, standard deviation
lognormal:512,0.8    median, sigma of the logarithm
histogram:FILE       JSON object {"value": weight, ...}, or lines "value weight" (or "value,weight", or "value")
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError
from loadgen.quantities import parse_duration
from loadgen.regular_file import check_regular
from loadgen.workload.distributions import Distribution, Fixed, Histogram, LogNormal, Normal, Uniform

_FORMS = "128, uniform:64-256, normal:512,64, lognormal:512,0.8 or histogram:FILE"
_TIME_FORMS = "uniform:500ms-2s, normal:2s,500ms, lognormal:2s,0.8 or histogram:FILE"


@dataclass(frozen=True)
class Lengths:
    """Whole numbers >= 1: values outside [1, max_tokens] become the nearer end.

    Attributes:
        distribution: before clipping.
        max_tokens: None = no upper end.
    """

    distribution: Distribution
    max_tokens: int | None = None

    def draw(self, rng: np.random.Generator, limit: int | None = None) -> int:
        """One length; `limit` (>= 1) is a further upper end, for this draw only.

        Effects: advances `rng` by an amount independent of the limits.
        """
        return self.fitted(self.asked(rng), limit)

    def asked(self, rng: np.random.Generator) -> int:
        """One length as the distribution has it, before the limits. Effects: advances `rng`."""
        return self.distribution.whole(rng)

    def fitted(self, asked: int, limit: int | None = None) -> int:
        """A requested length, clamped to the limits."""
        ends = [end for end in (self.max_tokens, limit) if end is not None]
        return max(1, min([asked, *ends]))

    @property
    def least(self) -> int:
        """The shortest length that can be requested and sent."""
        return max(1, self.distribution.least)


def lengths(text: str, *, range_ratio: float = 0.0, max_tokens: int | None = None) -> Lengths:
    """Lengths as written on the command line.

    Args:
        text: one of the forms above. range_ratio: `--random-range-ratio` of `vllm bench serve`: whole numbers from
            floor(n(1-r)) to ceil(n(1+r)), for a fixed n only.
    Raises: UsageError if it cannot be understood, or is always 0; TraceFormatError for the file of a histogram.
    """
    distribution = parse(text)
    if isinstance(distribution, Fixed) and distribution.least < 1:
        raise UsageError(f"a length of {text} cannot be sent; the least is 1")
    if range_ratio:
        if not isinstance(distribution, Fixed):
            raise UsageError(f"a range ratio needs a plain length, not {text!r}; write uniform:LOW-HIGH instead")
        n = distribution.number
        distribution = Uniform(math.floor(n * (1 - range_ratio)), math.ceil(n * (1 + range_ratio)))
    return Lengths(distribution, max_tokens)


def parse_times(text: str) -> Distribution:
    """A distribution of durations [s]: as of lengths, with `2s`, `uniform:500ms-2s` or `lognormal:2s,0.8`.

    Raises: UsageError if it cannot be understood; TraceFormatError for a histogram's file, whose values are seconds.
    """
    try:
        return parse(text, parse_duration)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}; or {_TIME_FORMS}") from None


def parse(text: str, number: Callable[[str], float] | None = None) -> Distribution:
    """A distribution as written on the command line.

    Args:
        number: reads one value; without it a plain number.
    Raises: UsageError if it cannot be understood or has negative numbers; TraceFormatError for a histogram's file;
        what `number` raises.
    """
    kind, colon, rest = text.strip().partition(":")
    read = number or _plain
    if not colon:
        return Fixed(_numbers(kind, text, read)[0])
    if kind == "uniform":
        return Uniform(*_numbers(rest.replace("-", ","), text, read, read))
    if kind == "normal":
        return Normal(*_numbers(rest, text, read, read))
    if kind == "lognormal":
        return LogNormal(*_numbers(rest, text, read, _plain))
    if kind == "histogram":
        return read_histogram(Path(rest))
    raise UsageError(f"{text!r} is no length; write {_FORMS}")


def read_histogram(path: Path) -> Histogram:
    """A histogram from a file.

    Raises: UsageError if it cannot be opened; TraceFormatError if it is none.
    """
    try:
        check_regular(path)
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the histogram {path}: {getattr(error, 'strerror', None) or error}") from None
    pairs = _from_object(content, path) if content.lstrip().startswith("{") else _from_lines(content, path)
    try:
        return Histogram(tuple(value for value, _ in pairs), tuple(weight for _, weight in pairs))
    except UsageError as error:
        raise TraceFormatError(f"{path}: {error}") from None


def _from_object(content: str, path: Path) -> list[tuple[float, float]]:
    """Value and weight of each key of a JSON object."""
    try:
        found = json_text.decode(content, dict[str, float])
        return [(_finite(value), weight) for value, weight in found.items()]
    except (*NOT_JSON, ValueError) as error:
        raise TraceFormatError(f"{path}: not an object of numbers and weights ({error})") from None


def _from_lines(content: str, path: Path) -> list[tuple[float, float]]:
    """Value and weight of each line; empty lines and those starting with # are comments."""
    pairs = []
    for number, line in enumerate(content.splitlines(), start=1):
        fields = line.replace(",", " ").split()
        if not fields or line.lstrip().startswith("#"):
            continue
        try:
            value, weight = (*map(_finite, fields), 1.0)[:2]
            if len(fields) > 2:
                raise ValueError("too many fields")
        except ValueError as error:
            raise TraceFormatError(f"{path}:{number}: not 'value weight' ({error})") from None
        pairs.append((value, weight))
    return pairs


def _numbers(text: str, whole: str, *reads: Callable[[str], float]) -> list[float]:
    """Numbers >= 0 between commas, one for each reader."""
    parts = text.split(",")
    found = [read(part) for read, part in zip(reads, parts, strict=False)]
    if len(parts) != len(reads) or not min(found) >= 0:
        raise UsageError(f"{whole!r} is no length; write {_FORMS}")
    return found


def _plain(text: str) -> float:
    """A finite number; -1, which is refused, for anything else."""
    try:
        return _finite(text)
    except ValueError:
        return -1.0


def _finite(text: str) -> float:
    """A finite number. Raises: ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value

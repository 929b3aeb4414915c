"""The files of a ServeGen data set: for each client, how it asked in each window of time, and how long its texts were.

    chunk-N-trace.csv       start [s], requests per second, CV of the gaps, family of the gaps, shape, scale
    chunk-N-dataset.json    start [s] -> {"input_tokens": "{length: probability, ...}", "output_tokens": ...}

Windows of lengths are longer than windows of rates; each holds until the next one that is not empty. A window without
requests has the rate 0 and no family.
"""

import bisect
import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError
from loadgen.regular_file import check_regular
from loadgen.trace.lines import numbered_lines
from loadgen.workload.distributions import Histogram

_TRACE_NAME = re.compile(r"chunk-(\d+)-trace\.csv")
_DEFAULT_WINDOW_S = 600.0


class Family(StrEnum):
    """Distribution of the gaps between a client's requests; names are those of the files."""

    GAMMA = "Gamma"
    WEIBULL = "Weibull"


@dataclass(frozen=True)
class Window:
    """How a client asked in one stretch of time. `shape`: of the family; its scale follows from the rate."""

    start_s: float
    rate_per_s: float
    family: Family
    shape: float


class _Lengths(msgspec.Struct):
    """Histograms of one window of lengths, each a mapping, or the text of one with bare numbers as keys."""

    input_tokens: str | dict[str, float]
    output_tokens: str | dict[str, float]


@dataclass(frozen=True)
class Client:
    """One client of the service. `windows`: those with requests, ascending."""

    number: int
    windows: tuple[Window, ...]
    lengths_path: Path

    def lengths(self, at_s: float) -> tuple[Histogram, Histogram]:
        """Input and output lengths at a time: the latest window of lengths that is not empty, else the first.

        Raises: UsageError if the file cannot be read; TraceFormatError if it is no such data set.
        """
        starts, found = self._lengths
        return found[max(0, bisect.bisect_right(starts, at_s) - 1)]

    @cached_property
    def _lengths(self) -> tuple[list[float], list[tuple[Histogram, Histogram]]]:
        """Starts and histograms of the windows that have any."""
        path = self.lengths_path
        try:
            check_regular(path)
            windows = json_text.decode(path.read_bytes(), dict[float, _Lengths])
            found = sorted(
                (start, (histogram(window.input_tokens), histogram(window.output_tokens)))
                for start, window in windows.items()
                if len(window.input_tokens) > len("{}") or isinstance(window.input_tokens, dict)
            )
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
        except (*NOT_JSON, ValueError, UsageError) as error:
            raise TraceFormatError(
                f"{path}: not a ServeGen data set of input_tokens and output_tokens ({error})"
            ) from None
        if not found:
            raise TraceFormatError(f"{path}: no lengths in any window, although the client has requests")
        return [start for start, _ in found], [pair for _, pair in found]


def read_clients(folder: Path, numbers: Collection[int] | None = None) -> tuple[list[Client], float]:
    """The clients of a data set, by number, and the length of a window of rates [s].

    Args:
        numbers: only these; None = all.
    Raises: UsageError if the folder has no such files, or lacks a client asked for; TraceFormatError naming the line
        that is no window.
    """
    matches = [match for path in _listed(folder) if (match := _TRACE_NAME.fullmatch(path.name))]
    present = sorted(int(match[1]) for match in matches)
    if not present:
        raise UsageError(f"{folder} has no chunk-N-trace.csv; --dataset-path takes the folder of a ServeGen model")
    missing = sorted(set(numbers or ()) - set(present))
    if missing:
        raise UsageError(f"{folder} has no client {missing[0]}; its clients are {present[0]} to {present[-1]}")
    starts: set[float] = set()
    clients = []
    for number in present if numbers is None else sorted(set(numbers)):
        windows = _windows(folder / f"chunk-{number}-trace.csv", starts)
        clients.append(Client(number, windows, folder / f"chunk-{number}-dataset.json"))
    ordered = sorted(starts)
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    return clients, min(gaps, default=_DEFAULT_WINDOW_S)


def histogram(written: str | dict[str, float]) -> Histogram:
    """A histogram from its text "{35: 0.25, 36: 0.75}" or from a mapping.

    Raises: ValueError, UsageError if it is none.
    """
    if isinstance(written, str):
        pairs = [pair.partition(":") for pair in written.strip().strip("{}").split(",") if pair.strip()]
        weights = {float(value.strip(" '\"")): float(weight) for value, _, weight in pairs}
    else:
        weights = {float(value): weight for value, weight in written.items()}
    return Histogram(tuple(weights), tuple(weights.values()))


def _listed(folder: Path) -> list[Path]:
    """Files of a folder. Raises: UsageError."""
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror or error}") from None


def _windows(path: Path, starts: set[float]) -> tuple[Window, ...]:
    """The windows with requests.

    Raises: TraceFormatError.
    Effects: adds the start of every window to `starts`.
    """
    windows = []
    for number, line in numbered_lines(path):
        try:
            start, rate, _, family, shape, _ = line.decode().strip().split(",")
            starts.add(float(start))
            if float(rate) > 0:
                windows.append(Window(float(start), float(rate), Family(family), float(shape)))
                if not 0 < windows[-1].shape < float("inf"):
                    raise ValueError("a shape must be above 0")
        except ValueError as error:
            raise TraceFormatError(f"{path}:{number}: not a window of a ServeGen trace ({error})") from None
    return tuple(sorted(windows, key=lambda window: window.start_s))

"""ServeGen windows: requests generated from the rate, burstiness and lengths of each client of a real service.

In each window a client is a stationary renewal process of the family that was fitted to it, at the window's own rate.
Every (client, window) draws from a stream of its own: a client's requests do not depend on the other chosen clients or
on the start of the simulated stretch.
"""

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen import json_text
from loadgen.errors import TraceFormatError
from loadgen.regular_file import check_regular
from loadgen.trace.draws import FloatArray, Gaps, IntArray, LengthHistogram, histogram, random_stream, stationary_events
from loadgen.trace.lines import LONGEST_S, numbered_lines, trace_error, unreadable
from loadgen.trace.request import TraceRecord

# The files of a ServeGen folder: arrivals of each client of a real service, by window.
#
#   chunk-N-trace.csv       a window a line: start [s], requests per second, CV of the gaps, their family, shape, scale
#   chunk-N-dataset.json    start [s] -> {"input_tokens": "{length: probability, ...}", "output_tokens": "{...}"}
#
# Windows of lengths are longer than those of rates; each holds until the next that is not empty. Reasoning is part of
# the output lengths.

_TRACE_NAME = re.compile(r"chunk-(\d+)-trace\.csv")
_ONE_WINDOW_S = 600.0
"""Length of a window in files with a single one."""


@dataclass(frozen=True, slots=True)
class Window:
    """A client's arrivals during one window from `start_s`. `shape`: of the family of gaps."""

    start_s: float
    rate_per_s: float
    gaps: Gaps
    shape: float


class _Lengths(msgspec.Struct):
    """One window of lengths: mappings, or the text of one with bare numbers as keys."""

    input_tokens: str | dict[str, float]
    output_tokens: str | dict[str, float]


_DATASET = json_text.Decoder(dict[str, _Lengths])


@dataclass(slots=True)
class Client:
    """One client. `windows`: those with requests, by their start."""

    number: int
    windows: dict[float, Window]
    dataset: Path
    _texts: list[tuple[float, _Lengths]] | None = None
    _found: dict[int, tuple[LengthHistogram, LengthHistogram]] = field(default_factory=dict)

    def lengths(self, at_s: float) -> tuple[LengthHistogram, LengthHistogram]:
        """Lengths of prompts and of responses at a time: of the latest window that has some, else of the first.

        Raises: TraceFormatError if the file cannot be read or has no lengths.
        Effects: caches what was read.
        """
        if self._texts is None:
            self._texts = self._read()
        place = max(0, bisect.bisect_right(self._texts, at_s, key=lambda window: window[0]) - 1)
        if place not in self._found:
            start_s, texts = self._texts[place]
            try:
                self._found[place] = _parsed(texts.input_tokens), _parsed(texts.output_tokens)
            except ValueError as error:
                raise TraceFormatError(
                    f"{self.dataset}: window {start_s:g} has no lengths like {{35: 0.25, 36: 0.75}} ({error}); "
                    "fetch the file again"
                ) from None
        return self._found[place]

    def _read(self) -> list[tuple[float, _Lengths]]:
        """Windows with lengths, ascending.

        Raises: TraceFormatError.
        """
        try:
            check_regular(self.dataset)
            windows = _DATASET.decode(self.dataset.read_bytes())
            texts = sorted(
                ((float(start), texts) for start, texts in windows.items() if _has_any(texts.input_tokens)),
                key=lambda window: window[0],
            )
        except OSError as error:
            raise TraceFormatError(
                f"{self.dataset}: cannot be read ({error.strerror or error}); fetch it, or leave client "
                f"{self.number} out"
            ) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise TraceFormatError(
                f"{self.dataset}: not windows of input_tokens and output_tokens ({error}); fetch the file again"
            ) from None
        if not texts:
            raise TraceFormatError(f"{self.dataset}: no lengths in any window; leave client {self.number} out")
        return texts


def read_clients(folder: Path, wanted: Sequence[int] = ()) -> tuple[list[Client], float]:
    """Clients by number, and the length of a window [s].

    Args:
        wanted: only these; empty = all.
    Raises: TraceFormatError if the folder has no such files or lacks a client, or naming the line that is no window.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None
    present = sorted(int(match[1]) for name in names if (match := _TRACE_NAME.fullmatch(name)))
    if not present:
        raise TraceFormatError(f"{folder}: a folder without chunk-N-trace.csv; name a ServeGen folder or a trace file")
    missing = sorted(set(wanted) - set(present))
    if missing:
        raise TraceFormatError(f"{folder}: no client {missing[0]}; its clients are {', '.join(map(str, present))}")
    starts: set[float] = set()
    clients = [
        Client(number, _windows(folder / f"chunk-{number}-trace.csv", starts), folder / f"chunk-{number}-dataset.json")
        for number in (sorted(set(wanted)) or present)
    ]
    gaps = (later - earlier for earlier, later in itertools.pairwise(sorted(starts)))
    return clients, min(gaps, default=_ONE_WINDOW_S)


def _windows(path: Path, starts: set[float]) -> dict[float, Window]:
    """The windows with requests.

    Raises: TraceFormatError.
    Effects: adds the start of every window to `starts`.
    """
    windows: dict[float, Window] = {}
    for number, line in numbered_lines(path):
        try:
            start, rate, _, family, shape, _ = line.decode().strip().split(",")
            start_s, rate_per_s = float(start), float(rate)
            if not (0 <= start_s <= LONGEST_S and 0 <= rate_per_s < float("inf")):
                raise ValueError("starts are seconds from the first day, and neither they nor rates are negative")
            starts.add(start_s)
            if rate_per_s > 0:
                windows[start_s] = Window(start_s, rate_per_s, Gaps(family), float(shape))
                if not 0 < float(shape) < float("inf"):
                    raise ValueError("a shape is above 0")
        except ValueError as error:
            raise trace_error(
                path, number, f"not a window `start,rate,cv,family,shape,scale` ({error}); fetch the file again"
            ) from None
    return windows


def _has_any(written: str | dict[str, float]) -> bool:
    """Whether a histogram has lengths, judged without parsing it."""
    return ":" in written if isinstance(written, str) else bool(written)


def _parsed(written: str | dict[str, float]) -> LengthHistogram:
    """Raises: ValueError."""
    if not isinstance(written, str):
        return histogram([float(length) for length in written], list(written.values()))
    pairs = [pair.partition(":") for pair in written.strip("{} \n").split(",")]
    return histogram([float(pair[0].strip(" '\"")) for pair in pairs], [float(pair[2]) for pair in pairs])


# ServeGen windows: requests generated from the rate, burstiness and lengths of each client of a real service.


class MadeRequests(NamedTuple):
    """The requests of one window, in order of arrival: [requests] each; times count from the collection's beginning."""

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    client: IntArray


@dataclass(frozen=True, slots=True)
class ServeGenTrace:
    """Reader of one folder; arrivals count from the collection's beginning.

    Attributes:
        clients: their numbers; empty = all.
        start_s, end_s: requests outside are not made.
        volume: factor on every client's rate. Windows keep their length: the day keeps its course, where a factor on
            time would make its slopes steeper.
        block_tokens: None, since prefixes are unknown.
    """

    path: Path
    clients: tuple[int, ...] = ()
    start_s: float = 0.0
    end_s: float = math.inf
    seed: int = 0
    volume: float = 1.0
    block_tokens: None = None
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        """See `Trace`; tenants are the clients."""
        for window in self.windows():
            for at_s, input_tokens, output_tokens, client in zip(*(one.tolist() for one in window), strict=True):
                if self.start_s <= at_s < self.end_s:
                    yield TraceRecord(
                        arrival_s=at_s,
                        input_tokens=input_tokens,
                        output_tokens=output_tokens,
                        tenant=f"client-{client}",
                    )

    def windows(self) -> Iterator[MadeRequests]:
        """The requests, one whole window at a time, of those windows that touch the stretch.

        Raises: TraceFormatError if files are missing, naming the unreadable file and line, or if no client has a
            request in the stretch.
        """
        clients, window_s = read_clients(self.path, self.clients)
        self._check_any(clients, window_s)
        starts = sorted({start for client in clients for start in client.windows})
        for start_s in starts:
            if start_s < self.end_s and start_s + window_s > self.start_s:
                yield self._window(clients, start_s, window_s)

    def expected(self) -> float:
        """How many requests to expect.

        Raises: TraceFormatError as `windows`.
        """
        clients, window_s = read_clients(self.path, self.clients)
        return sum(self._check_any(clients, window_s)) * self.volume * window_s

    def _check_any(self, clients: list[Client], window_s: float) -> list[float]:
        """Rates of all windows in the stretch [1/s]. Raises: TraceFormatError if there are none."""
        rates = [
            window.rate_per_s
            for client in clients
            for window in client.windows.values()
            if window.start_s < self.end_s and window.start_s + window_s > self.start_s
        ]
        if not rates:
            raise TraceFormatError(
                f"{self.path}: no client sends requests from {self.start_s:g} to {self.end_s:g} s; choose another "
                "stretch or other clients"
            )
        return rates

    def _window(self, clients: list[Client], start_s: float, window_s: float) -> MadeRequests:
        """All clients' requests of one window, in order of arrival."""
        drawn = [
            self._asked(client, client.windows[start_s], window_s) for client in clients if start_s in client.windows
        ]
        columns = [np.concatenate(column) for column in zip(*drawn, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return MadeRequests(*(column[order] for column in columns))

    def _asked(
        self, client: Client, window: Window, window_s: float
    ) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
        """One client's arrivals [s], prompt and output lengths [tokens] in one window, and its number each time."""
        rng = random_stream(self.seed, f"servegen/{client.number}/{window.start_s:g}")
        rate_per_s = window.rate_per_s * self.volume
        events = stationary_events(window.gaps, window.shape, rate_per_s * window_s, rng)
        prompt, output = client.lengths(window.start_s)
        count = len(events)
        numbers = np.full(count, client.number, np.int64)
        return window.start_s + events / rate_per_s, prompt.draw(count, rng), output.draw(count, rng), numbers

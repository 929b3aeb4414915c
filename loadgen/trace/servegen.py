"""ServeGen windows: requests generated from the rate, burstiness and lengths of each client of a real service.

In each window a client is a stationary renewal process of the family that was fitted to it, at the window's own rate.
Every (client, window) draws from a stream of its own: a client's requests do not depend on the other chosen clients or
on the start of the simulated stretch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadgen.errors import TraceFormatError
from loadgen.trace.draws import FloatArray, IntArray, random_stream, stationary_events
from loadgen.trace.request import TraceRecord
from loadgen.trace.servegen_files import Client, Window, read_clients


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

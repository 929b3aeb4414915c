"""ServeGen windows: requests made anew from the rate, burstiness and lengths of each client of a real service.

In each window a client is a stationary renewal process of the family that was fitted to it, at the window's own rate.
Every (client, window) draws from a stream of its own: a client's requests are the same whichever others are chosen,
and wherever the simulated stretch begins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serving.sim.workload.columns import Columns
from serving.sim.workload.draws import random_stream, stationary_events
from serving.sim.workload.errors import TraceError
from serving.sim.workload.servegen_files import Client, Window, read_clients


@dataclass(frozen=True, slots=True)
class ServeGenTrace:
    """Reader of one folder; arrivals count from the collection's beginning.

    Attributes:
        clients: their numbers; empty = all.
        start_s, end_s: windows that lie outside are not made.
        volume: factor on every client's rate. Windows keep their length: the day keeps its course, where a factor on
            time would make its slopes steeper.
        block_tokens: None, since nothing is known of prefixes.
    """

    folder: Path
    clients: tuple[int, ...] = ()
    start_s: float = 0.0
    end_s: float = math.inf
    seed: int = 0
    volume: float = 1.0
    block_tokens: None = None

    def batches(self) -> Iterator[Columns]:
        """The requests, one window at a time.

        Raises: TraceError if files are missing, or naming the file and line that cannot be.
        """
        clients, window_s = read_clients(self.folder, self.clients)
        starts = sorted({start for client in clients for start in client.windows})
        for start_s in starts:
            if start_s < self.end_s and start_s + window_s > self.start_s:
                yield self._window(clients, start_s, window_s)

    def expected(self) -> float:
        """How many requests to expect.

        Raises: TraceError as `batches`; if no client asks anything in the stretch.
        """
        clients, window_s = read_clients(self.folder, self.clients)
        rates = [
            window.rate_per_s
            for client in clients
            for window in client.windows.values()
            if window.start_s < self.end_s and window.start_s + window_s > self.start_s
        ]
        if not rates:
            raise TraceError(
                f"{self.folder}: no client asks anything from {self.start_s:g} to {self.end_s:g} s; choose another "
                "stretch or other clients"
            )
        return sum(rates) * self.volume * window_s

    def _window(self, clients: list[Client], start_s: float, window_s: float) -> Columns:
        """All clients' requests of one window, in order of arrival."""
        drawn = [
            self._asked(client, client.windows[start_s], window_s) for client in clients if start_s in client.windows
        ]
        arrivals, prompts, outputs = (np.concatenate(column) for column in zip(*drawn, strict=True))
        order = np.argsort(arrivals, kind="stable")
        none = np.zeros(len(order), np.int64)
        return Columns(arrivals[order], prompts[order], outputs[order], np.empty(0, np.int64), none)

    def _asked(self, client: Client, window: Window, window_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One client's arrivals [s], prompt and output lengths [tokens] in one window."""
        rng = random_stream(self.seed, f"servegen/{client.number}/{window.start_s:g}")
        rate_per_s = window.rate_per_s * self.volume
        events = stationary_events(window.gaps, window.shape, rate_per_s * window_s, rng)
        prompt, output = client.lengths(window.start_s)
        count = len(events)
        return window.start_s + events / rate_per_s, prompt.draw(count, rng), output.draw(count, rng)

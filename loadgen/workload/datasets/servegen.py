"""ServeGen windows: requests made anew from the rates, burstiness and lengths of each client of a real service.

In each window a client is a renewal process of the family and shape that were fitted to it, at the window's own rate.
It is drawn as a stationary one: the time to the first request is that of an onlooker who arrives at random, not a whole
gap. Bursty clients (CV up to 10 in this data) would else start every window with a burst and ask up to half as much
again as they did; and the published generator's way, to stretch the gaps until they fill the window, changes the
family.
Input and output lengths are drawn independently, reasoning is part of the output.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadgen.arrivals.process import FloatArray
from loadgen.errors import UsageError
from loadgen.plan import Conversation
from loadgen.workload.datasets.azure import random_turn
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.datasets.servegen_files import Client, Family, Window, read_clients
from loadgen.workload.ports import WordSource

_BLOCK = 256


@dataclass(frozen=True)
class ServeGen:
    """Workload of a ServeGen folder. Finite; one turn each; `arrival_s` counts from `from_s`; tenants are the clients.

    Attributes:
        words: where text comes from. fit: scales and clips lengths.
        from_s, to_s: the part of the recorded time that is made.
        clients: their numbers; empty = all.
        rate_scale: every client asks so many times as often, in unchanged time. (`arrivals.Replay.rate_scale` makes
            time run faster instead, so that the day's course is shorter, too.)
    """

    folder: Path
    words: WordSource
    fit: Fit = field(default_factory=Fit)
    from_s: float = 0.0
    to_s: float = math.inf
    clients: tuple[int, ...] = ()
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        """Raises: UsageError for a scale that is not above 0, or an empty or negative stretch of time."""
        if not 0 < self.rate_scale < math.inf:
            raise UsageError(f"the rate scale must be above 0, not {self.rate_scale}")
        if not 0 <= self.from_s < self.to_s:
            raise UsageError(f"from {self.from_s} s to {self.to_s} s of the data set is no stretch of time")

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if files are missing, or if nothing is in the stretch of time; TraceFormatError naming the
            file and line that is not what it should be.
        """
        clients, window_s = read_clients(self.folder, self.clients or None)
        active = [
            (window, client)
            for client in clients
            for window in client.windows
            if window.start_s < self.to_s and window.start_s + window_s > self.from_s
        ]
        if not active:
            raise UsageError(f"no client of {self.folder} asks anything between {self.from_s:g} s and {self.to_s:g} s")
        for start_s in sorted({window.start_s for window, _ in active}):
            together = [(window, client) for window, client in active if window.start_s == start_s]
            for at_s, client in self._merged(together, window_s, rng):
                yield self._conversation(at_s, client, rng)

    def _merged(
        self, together: list[tuple[Window, Client]], window_s: float, rng: np.random.Generator
    ) -> list[tuple[float, Client]]:
        """Requests of all clients in one window, in order of time. Effects: advances `rng`."""
        arrivals = [
            (at_s, number)
            for number, (window, _) in enumerate(together)
            for at_s in (window.start_s + self._times(window, window_s, rng)).tolist()
            if self.from_s <= at_s < self.to_s
        ]
        return [(at_s, together[number][1]) for at_s, number in sorted(arrivals)]

    def _times(self, window: Window, window_s: float, rng: np.random.Generator) -> FloatArray:
        """Times of one client's requests from the start of a window [s]. Effects: advances `rng`."""
        rate_per_s = window.rate_per_s * self.rate_scale
        return stationary_times(window.family, window.shape, rate_per_s * window_s, rng) / rate_per_s

    def _conversation(self, at_s: float, client: Client, rng: np.random.Generator) -> Conversation:
        """One request with lengths of its client. Effects: advances `rng`; may read the client's lengths."""
        inputs, outputs = client.lengths(at_s)
        self.fit.tally.taken += 1
        input_tokens, output_tokens = inputs.whole(rng), outputs.whole(rng)
        turn = random_turn(self.words, self.fit, input_tokens, output_tokens, rng)
        return Conversation(turns=[turn], tenant=f"client-{client.number}", arrival_s=at_s - self.from_s)


def stationary_times(family: Family, shape: float, until: float, rng: np.random.Generator) -> FloatArray:
    """Events in [0, until) of a stationary renewal process of unit rate: `until` of them on average, exactly.

    The gap around an arbitrary moment is drawn with a probability proportional to its length, and the moment lies
    anywhere in it; the first event is at the end of that gap.

    Effects: advances `rng`.
    """
    if family is Family.GAMMA:
        around = rng.standard_gamma(shape + 1) / shape
    else:
        around = rng.standard_gamma(1 + 1 / shape) ** (1 / shape) / math.gamma(1 + 1 / shape)
    reached = float(rng.random()) * around
    parts = [np.empty(0)]
    while reached < until:
        if family is Family.GAMMA:
            gaps = rng.standard_gamma(shape, _BLOCK) / shape
        else:
            gaps = rng.weibull(shape, _BLOCK) / math.gamma(1 + 1 / shape)
        times = reached + np.concatenate([[0.0], np.cumsum(gaps)])
        parts.append(times[:-1])
        reached = float(times[-1])
    found = np.concatenate(parts)
    return found[: int(np.searchsorted(found, until))]

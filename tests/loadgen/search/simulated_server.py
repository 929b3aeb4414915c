"""A queue with a known capacity, and probes of it: the replacement of the live server and driver."""

import numpy as np
from numpy.typing import NDArray

from loadgen.search.backlog import running_grows
from loadgen.search.saturation import Probe, ProbeResult, SearchFound, SearchSettings, next_step


class Queue:
    """`servers` servers of `service_s` each, first come first served, Poisson arrivals (M/D/c)."""

    def __init__(self, service_s: float, servers: int = 1, seed: int = 0) -> None:
        self.service_s = service_s
        self.servers = servers
        self.capacity_per_s = servers / service_s
        self.rng = np.random.default_rng(seed)

    def run(self, rate_per_s: float, requests: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Arrival times and waiting times."""
        arrivals = np.cumsum(self.rng.exponential(1 / rate_per_s, requests))
        free = np.zeros(self.servers)
        waits = np.empty(requests)
        for number, arrival in enumerate(arrivals):
            first = int(free.argmin())
            begun = max(arrival, free[first])
            waits[number] = begun - arrival
            free[first] = begun + self.service_s
        return arrivals, waits

    def probe(self, probe: Probe, limit_s: float) -> ProbeResult:
        """A probe of a rate, where a request is good if it waits no longer than `limit_s`."""
        arrivals, waits = self.run(probe.value, probe.requests)
        return ProbeResult(
            value=probe.value,
            good=int((waits <= limit_s).sum()),
            counted=len(waits),
            overloaded=self.grows(arrivals, waits, probe.value),
            took_s=float(arrivals[-1] + waits[-1] + self.service_s),
        )

    def grows(self, arrivals: NDArray[np.float64], waits: NDArray[np.float64], rate_per_s: float) -> str:
        """The backlog as it is sampled during a run."""
        times = np.linspace(0, arrivals[-1], 60)[1:]
        ends = arrivals + waits + self.service_s
        running = [(arrivals <= time).sum() - (ends <= time).sum() for time in times]
        return running_grows(times.tolist(), running, rate_per_s)


def search(settings: SearchSettings, queue: Queue, limit_s: float) -> tuple[SearchFound, list[ProbeResult]]:
    """A whole search."""
    results: list[ProbeResult] = []
    while isinstance(step := next_step(settings, results), Probe):
        assert len(results) < settings.most_probes
        results.append(queue.probe(step, limit_s))
    return step, results

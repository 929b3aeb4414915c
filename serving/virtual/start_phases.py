"""Phases of an instance start in virtual time, and the pre-warmed processes that save the first phase.

    process 30 s | weights: pool 5 s, storage 320 s | compiled graphs | serves
    `---- skipped if processes are pre-warmed on enough NPUs; used processes are replaced after those 30 s

A pre-warmed process has no model: it belongs to the platform, and its NPU is not allocated to an instance. Source:
pre-warmed TEs of xDeepServe's parent system (arXiv 2501.14417, section 6.1).
"""

from collections import deque
from dataclasses import dataclass

from hardware.cost.cost_model import CostModel
from serving.config.simulation import SimulationConfig

PROCESS_S = 30.0
"""Start of an engine process without weights [s]. Source: xDeepServe's parent system, 26-32 s."""


@dataclass(frozen=True, slots=True)
class StartPhases:
    """Durations of the phases [s]."""

    process: float
    weights: float
    graphs: float

    def seconds(self, *, warm: bool) -> float:
        """From the decision to serving [s].

        Args:
            warm: whether the processes are already running.
        """
        return (0.0 if warm else self.process) + self.weights + self.graphs


def start_phases(cost: CostModel, config: SimulationConfig) -> StartPhases:
    """The configured phases. Instances pre-warmed with their model have only the last phase; a measured total start
    time is a single phase.
    """
    if config.start_s:
        return StartPhases(0.0, config.start_s, 0.0)
    source = config.model_load
    process = 0.0 if source == "prewarmed" else PROCESS_S
    return StartPhases(process, float(cost.model_load_s(source)), config.graphs_s)


class WarmProcesses:
    """Pre-warmed processes without a model.

    Args:
        npus: total NPUs of the processes.
    """

    def __init__(self, npus: int) -> None:
        self._npus = npus
        self._taken: deque[tuple[float, int]] = deque()
        """Used processes of the last `PROCESS_S`: when they are replaced [s], and their NPUs."""

    def npus(self, now: float) -> int:
        """NPUs with a pre-warmed process."""
        while self._taken and self._taken[0][0] <= now:
            self._npus += self._taken.popleft()[1]
        return self._npus

    def take(self, npus: int, now: float) -> bool:
        """Use the processes of so many NPUs; they are replaced after `PROCESS_S`.

        Returns: False if there are too few; then none are used.
        """
        if npus > self.npus(now):
            return False
        self._npus -= npus
        self._taken.append((now + PROCESS_S, npus))
        return True

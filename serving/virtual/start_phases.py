"""The phases of a start in virtual time, and the processes that wait so that the first one is spared.

    process 30 s | weights: pool 5 s, storage 320 s | compiled graphs | serves
    `---- none where processes wait on as many NPUs; whoever takes them is replaced after those 30 s

A process that waits has no model: it belongs to the platform, and its NPU to nobody. Source: pre-warmed TEs of
xDeepServe's parent system (arXiv 2501.14417, section 6.1).
"""

from collections import deque
from dataclasses import dataclass

from hardware.cost.cost_model import CostModel
from serving.config.simulation import SimulationConfig

PROCESS_S = 30.0
"""An engine without weights. Source: xDeepServe's parent system, 26-32 s."""


@dataclass(frozen=True, slots=True)
class StartPhases:
    """Durations of the phases [s]."""

    process: float
    weights: float
    graphs: float

    def seconds(self, *, warm: bool) -> float:
        """From the decision to serving [s].

        Args:
            warm: the processes run already.
        """
        return (0.0 if warm else self.process) + self.weights + self.graphs


def start_phases(cost: CostModel, config: SimulationConfig) -> StartPhases:
    """The phases by configuration; instances that are kept pre-warmed with their model have only the last one, and
    what was measured as a whole is one phase.
    """
    if config.start_s:
        return StartPhases(0.0, config.start_s, 0.0)
    source = config.model_load
    process = 0.0 if source == "prewarmed" else PROCESS_S
    return StartPhases(process, float(cost.model_load_s(source)), config.graphs_s)


class WarmProcesses:
    """Processes without a model that wait.

    Args:
        npus: that they are on, all together.
    """

    def __init__(self, npus: int) -> None:
        self._npus = npus
        self._taken: deque[tuple[float, int]] = deque()
        """When they will be there again, and on how many NPUs; at most those of `PROCESS_S`."""

    def npus(self, now: float) -> int:
        """NPUs on which one waits."""
        while self._taken and self._taken[0][0] <= now:
            self._npus += self._taken.popleft()[1]
        return self._npus

    def take(self, npus: int, now: float) -> bool:
        """Take those of so many NPUs.

        Returns: False if there are too few; then none are taken.
        Effects: the taken ones are there again after `PROCESS_S`.
        """
        if npus > self.npus(now):
            return False
        self._npus -= npus
        self._taken.append((now + PROCESS_S, npus))
        return True

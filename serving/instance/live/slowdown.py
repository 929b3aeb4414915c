"""Deviations of simulated steps from their prediction: jitter and spikes, by step, derived from the seed."""

from collections.abc import Callable

from hardware.variation import StepVariation
from serving.config.simulation import SimulationConfig


def slowdown_of(simulation: SimulationConfig, name: str) -> Callable[[int], float] | None:
    """The factor on the duration of each step of one instance.

    Returns: None if steps take exactly the predicted time.
    """
    if not simulation.jitter and not simulation.spike_share:
        return None
    return StepVariation(
        simulation.jitter, simulation.spike_share, simulation.spike_factor, simulation.seed, name
    ).factor

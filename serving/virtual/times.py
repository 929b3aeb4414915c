"""Step durations by the cost model: the many similar decode steps from a table, prefill steps computed directly."""

import math

from hardware.cost import CostModel, PrefillLoad
from hardware.cost.step_tables import DecodeTable
from hardware.variation import StepVariation
from serving.config.simulation import SimulationConfig
from serving.ids import ReplicaId

_KEPT_STEPS = 4096
"""Prefill steps whose durations are remembered: prompts of one length, or after one common prefix, come again."""


class TableTimes:
    """Step durations of prefill instances of one size, and of decode instances.

    Args:
        prefill_dies, decode_dies: of one instance; `decode` also accepts other sizes.
    """

    def __init__(self, cost: CostModel, config: SimulationConfig, prefill_dies: int, decode_dies: int) -> None:
        self._prefill_dies = prefill_dies
        self._imbalance = config.prefill_imbalance
        self._cost = cost
        self._drafts = config.drafts
        self._decode_dies = decode_dies
        self._tp = cost.decode.parallelism.attention_tp
        self._decode = cost.decode_table(dies=decode_dies, drafts=config.drafts)
        self._prefill: dict[tuple[float, float, float], float] = {}
        self._others = {(decode_dies, 0.0): self._decode}

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        """Duration of a prefill step [s]; see `StepDurations`."""
        step = tokens, attended_tokens, largest
        seconds = self._prefill.get(step)
        if seconds is None:
            load = PrefillLoad(tokens, attended_tokens, self._prefill_dies, self._imbalance, largest=largest)
            if len(self._prefill) >= _KEPT_STEPS:
                self._prefill.clear()
            seconds = self._prefill[step] = self._cost.prefill_step_s(load)
        return seconds

    def decode(
        self,
        requests: float,
        context_tokens: float,
        mean_requests: float,
        groups: int = 0,
        imbalance: float = 0.0,
    ) -> float:
        """Duration of a decode iteration [s]; see `StepDurations`.

        Args:
            imbalance: see `DecodeLoad`; 0 = as fitted for the device. Each value has a table of its own.
        """
        table = self._decode
        if groups or imbalance:
            dies = self._cost.decode.parallelism.dies_of(groups) if groups else self._decode_dies
            table = self._of(dies, imbalance)
        return table.seconds(requests, context_tokens, mean_requests)

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """Time of a prompt chunk [s]: that of a prefill instance for as many tokens on each of its dies."""
        copies = self._prefill_dies / self._tp
        return self.prefill(tokens * copies, attended_tokens * copies)

    def _of(self, dies: int, imbalance: float) -> DecodeTable:
        table = self._others.get((dies, imbalance))
        if table is None:
            made = self._cost.decode_table(dies=dies, drafts=self._drafts, imbalance=imbalance or None)
            table = self._others[dies, imbalance] = made
        return table


# Current slowdown of an instance's steps relative to the prediction: jitter, spikes, stragglers, degraded links.

JITTER_STEPS = 8
"""Decode iterations that share one factor when steps vary: the mean of this many draws."""


class Slowdown:
    """Slowdown factor of one instance, called with the number of a step."""

    __slots__ = ("_averaged", "_factors", "_product", "_variation")

    def __init__(self, config: SimulationConfig, seed: int, name: ReplicaId, *, averaged: bool) -> None:
        """
        Args:
            averaged: one factor covers `JITTER_STEPS` steps.
        """
        varies = config.jitter > 0.0 or config.spike_share > 0.0
        self._variation = (
            StepVariation(config.jitter, config.spike_share, config.spike_factor, seed, name) if varies else None
        )
        self._averaged = averaged
        self._factors: dict[str, float] = {}
        self._product = 1.0

    @property
    def varies(self) -> bool:
        """Whether two steps may have different factors."""
        return self._variation is not None

    def set(self, cause: str, factor: float) -> None:
        """Set the factor of one cause from now on; 1 = no slowdown. The factors of all causes multiply."""
        self._factors[cause] = factor
        self._product = math.prod(self._factors.values(), start=1.0)

    def __call__(self, step: int) -> float:
        variation = self._variation
        if variation is None:
            return self._product
        if not self._averaged:
            return self._product * variation.factor(step)
        return self._product * sum(variation.factor(step + n) for n in range(JITTER_STEPS)) / JITTER_STEPS

"""Durations of steps, from the cost model: decode steps, many and alike, from a table; prefill steps directly."""

from hardware.cost import CostModel, PrefillLoad
from hardware.cost.step_tables import DecodeTable
from serving.config.simulation import SimulationConfig


class TableTimes:
    """Steps of prefill instances of one size, and of decode instances.

    Args:
        prefill_dies, decode_dies: of one instance; decode instances may have other sizes, too.
    """

    def __init__(self, cost: CostModel, config: SimulationConfig, prefill_dies: int, decode_dies: int) -> None:
        self._prefill_dies = prefill_dies
        self._perfect = config.expert_balance == "perfect"
        self._cost = cost
        self._drafts = config.drafts
        self._decode = cost.decode_table(dies=decode_dies, drafts=config.drafts)
        self._others = {decode_dies: self._decode}

    def prefill(self, tokens: float, attended_tokens: float) -> float:
        """See `StepTimes`."""
        return self._cost.prefill_step_s(PrefillLoad(tokens, attended_tokens, self._prefill_dies, self._perfect))

    def decode(self, requests: float, context_tokens: float, mean_requests: float, dies: int = 0) -> float:
        """See `StepDurations`."""
        table = self._of(dies) if dies else self._decode
        return table.seconds(requests, context_tokens, mean_requests)

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """See `StepTimes`. As long as a prefill instance takes for as many tokens on each of its dies."""
        dies = self._prefill_dies
        return self.prefill(float(tokens * dies), attended_tokens * dies)

    def _of(self, dies: int) -> DecodeTable:
        table = self._others.get(dies)
        if table is None:
            table = self._others[dies] = self._cost.decode_table(dies=dies, drafts=self._drafts)
        return table

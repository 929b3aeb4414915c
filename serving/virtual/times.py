"""Durations of steps, from the cost model: decode steps, many and alike, from a table; prefill steps directly."""

from hardware.cost import CostModel, PrefillLoad
from serving.config.simulation import SimulationConfig


class TableTimes:
    """Steps of one kind of prefill instance and one kind of decode instance.

    Args:
        prefill_dies, decode_dies: of one instance.
    """

    def __init__(self, cost: CostModel, config: SimulationConfig, prefill_dies: int, decode_dies: int) -> None:
        self._prefill_dies = prefill_dies
        self._perfect = config.expert_balance == "perfect"
        self._cost = cost
        self._decode = cost.decode_table(dies=decode_dies, drafts=config.drafts)

    def prefill(self, tokens: float, attended_tokens: float) -> float:
        """See `StepTimes`."""
        return self._cost.prefill_step_s(PrefillLoad(tokens, attended_tokens, self._prefill_dies, self._perfect))

    def decode(self, requests: float, context_tokens: float, mean_requests: float) -> float:
        """See `StepTimes`."""
        return self._decode.seconds(requests, context_tokens, mean_requests)

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """See `StepTimes`. As long as a prefill instance takes for as many tokens on each of its dies."""
        dies = self._prefill_dies
        return self.prefill(float(tokens * dies), attended_tokens * dies)

"""Recent speed of an instance or pool, for realistic Retry-After values.

An average over time with exponential decay: after `half_life_s` of work a measurement counts half.
"""

from dataclasses import dataclass

MIN_RETRY_S = 0.1
"""Below this a client can retry immediately."""
MAX_RETRY_S = 60.0
"""Above a minute the estimate reflects noise more than the queue."""
UNKNOWN_RETRY_S = 1.0
"""Retry-After before any measurement."""
FORGET_HALF_LIVES = 3.0
"""Half-lives after its last step from which an idle instance's rate is unknown."""


@dataclass(slots=True)
class BusyThroughput:
    """Tokens per second of busy time."""

    half_life_s: float = 10.0
    tokens: float = 0.0
    """Decayed sum."""
    seconds: float = 0.0
    """Decayed sum of busy time."""

    def observe(self, tokens: int, elapsed_s: float) -> None:
        """Count one step.

        Effects: decays earlier measurements by `elapsed_s`, adds the step.
        """
        keep = 0.5 ** (elapsed_s / self.half_life_s)
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + elapsed_s

    @property
    def tokens_per_s(self) -> float:
        """Recent rate; 0 when unknown."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def known_after(self, idle_s: float) -> float:
        """The rate, unless it is outdated.

        An instance that looks slow after one bad step gets no work while others are idle too, so it could never show
        that it has recovered. With an unknown rate it gets work again.

        Args:
            idle_s: time since the last step, without any work.
        Returns: tokens per second; 0 when unknown.
        """
        return self.tokens_per_s if idle_s < FORGET_HALF_LIVES * self.half_life_s else 0.0


def retry_after_s(queued_tokens: int, tokens_per_s: float) -> float:
    """Time until the queued work is done, at the recent rate, within limits."""
    if tokens_per_s <= 0:
        return UNKNOWN_RETRY_S
    return min(MAX_RETRY_S, max(MIN_RETRY_S, queued_tokens / tokens_per_s))

"""How fast an instance or pool has recently been, for honest "come back later" answers.

An average over time with exponential forgetting: `half_life_s` of work later a past measurement counts half.
"""

from dataclasses import dataclass

MIN_RETRY_S = 0.1
"""Below this a client may as well retry at once."""
MAX_RETRY_S = 60.0
"""Beyond a minute the estimate says more about noise than about the queue."""
UNKNOWN_RETRY_S = 1.0
"""Answer before anything was measured."""
FORGET_HALF_LIVES = 3.0
"""So long after its last step an idle instance's rate is not known any more."""


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

        Effects: decays what was known by `elapsed_s`, adds the step.
        """
        keep = 0.5 ** (elapsed_s / self.half_life_s)
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + elapsed_s

    @property
    def tokens_per_s(self) -> float:
        """Recent rate; 0 when unknown."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def known_after(self, idle_s: float) -> float:
        """The rate, as far as it still says something about what comes next.

        An instance that one bad step made look slow gets nothing while others are idle too, so it could never show that
        it is not slow any more. Work that it gets for being unknown again does.

        Args:
            idle_s: since the last step, with nothing to do since.
        Returns: tokens per second; 0 when unknown.
        """
        return self.tokens_per_s if idle_s < FORGET_HALF_LIVES * self.half_life_s else 0.0


def retry_after_s(queued_tokens: int, tokens_per_s: float) -> float:
    """When the work queued now will be done, at the recent rate, within sensible bounds."""
    if tokens_per_s <= 0:
        return UNKNOWN_RETRY_S
    return min(MAX_RETRY_S, max(MIN_RETRY_S, queued_tokens / tokens_per_s))

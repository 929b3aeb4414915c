"""Which clients do not behave, and how: shares of requests, seeded."""

from dataclasses import dataclass

import numpy as np

from loadgen.errors import UsageError
from loadgen.plan import Behaviour, Conduct, Conversation, Turn


@dataclass(frozen=True)
class Behaviours:
    """Shares of requests (turns) by conduct; the rest is well-behaved.

    Attributes:
        disconnect_share, slow_reader_share, timeout_share, malformed_share: each in [0, 1], together at most 1.
        disconnect_within_s: a client that disconnects does so at a random moment in this time, or at a random chunk of
            the response, whichever comes first; so that fast responses are interrupted, too.
        slow_reader_bytes_per_s: how fast slow readers read.
        give_up_after_s: deadline of requests with a short timeout [s].
        malformations: number of kinds of malformed requests; drawn equally.
    """

    disconnect_share: float = 0.0
    disconnect_within_s: float = 2.0
    slow_reader_share: float = 0.0
    slow_reader_bytes_per_s: float = 2000.0
    timeout_share: float = 0.0
    give_up_after_s: float = 0.5
    malformed_share: float = 0.0
    malformations: int = 8

    def __post_init__(self) -> None:
        """Raises: UsageError for shares outside [0, 1] or above 1 together."""
        shares = [share for _, share in self._shares()]
        if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
            raise UsageError("shares of client behaviour must be between 0 and 1, and sum to at most 1")

    def draw(self, conversation: Conversation, rng: np.random.Generator) -> list[Behaviour]:
        """One behaviour a turn; empty if every request of the run is normal.

        Effects: advances `rng`.
        """
        if not any(share for _, share in self._shares()):
            return []
        return [self._behaviour(turn, rng) for turn in conversation.turns]

    def _shares(self) -> tuple[tuple[Conduct, float], ...]:
        """Share of each conduct that is not normal."""
        return (
            (Conduct.DISCONNECT, self.disconnect_share),
            (Conduct.SLOW_READER, self.slow_reader_share),
            (Conduct.TIMEOUT, self.timeout_share),
            (Conduct.MALFORMED, self.malformed_share),
        )

    def _behaviour(self, turn: Turn, rng: np.random.Generator) -> Behaviour:
        """Behaviour of one request. The number of draws is constant, so that shares do not affect each other."""
        which, moment, chunk, kind = rng.random(4).tolist()
        for conduct, share in self._shares():
            if which < share:
                return self._with_numbers(conduct, turn, moment, chunk, kind)
            which -= share
        return Behaviour()

    def _with_numbers(self, conduct: Conduct, turn: Turn, moment: float, chunk: float, kind: float) -> Behaviour:
        """A conduct with its numbers; `moment`, `chunk` and `kind` are uniform in [0, 1)."""
        if conduct is Conduct.DISCONNECT:
            return Behaviour(
                conduct=conduct,
                leave_after_s=moment * self.disconnect_within_s,
                leave_after_chunks=1 + int(chunk * max(1, turn.output_tokens - 1)),
            )
        if conduct is Conduct.SLOW_READER:
            return Behaviour(conduct=conduct, read_bytes_per_s=self.slow_reader_bytes_per_s)
        if conduct is Conduct.TIMEOUT:
            return Behaviour(conduct=conduct, give_up_after_s=self.give_up_after_s)
        return Behaviour(conduct=conduct, malformation=int(kind * self.malformations))

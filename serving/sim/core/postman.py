"""Brings instances' news to the gateway that owns the sequence, which its id names."""

from collections.abc import Sequence

from serving.ids import SequenceId
from serving.policy.journal_commands import FailKind
from serving.policy.request import FinishReason, HandoffTicket, PoolUse
from serving.sim.core.ports import News


class Postman:
    """A `News` that passes everything on: sequence `g2-71/0@1` belongs to gateway 2."""

    def __init__(self) -> None:
        self.gateways: Sequence[News] = ()

    def _of(self, sequence_id: SequenceId) -> News:
        gateways = self.gateways
        return gateways[0] if len(gateways) == 1 else gateways[int(sequence_id[1 : sequence_id.index("-")])]

    def prefilled(
        self,
        sequence_id: SequenceId,
        ticket: HandoffTicket,
        position: int,
        tokens: tuple[int, ...],
        cached_tokens: int | None,
        pool: PoolUse | None,
    ) -> None:
        """See `News`."""
        self._of(sequence_id).prefilled(sequence_id, ticket, position, tokens, cached_tokens, pool)

    def tokens(
        self,
        sequence_id: SequenceId,
        position: int,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        cached_tokens: int | None,
        pool: PoolUse | None,
    ) -> None:
        """See `News`."""
        self._of(sequence_id).tokens(sequence_id, position, tokens, finish, cached_tokens, pool)

    def adopted(self, sequence_id: SequenceId) -> None:
        """See `News`."""
        self._of(sequence_id).adopted(sequence_id)

    def lost(self, sequence_id: SequenceId, reason: str) -> None:
        """See `News`."""
        self._of(sequence_id).lost(sequence_id, reason)

    def refused(self, sequence_id: SequenceId, kind: FailKind, reason: str) -> None:
        """See `News`."""
        self._of(sequence_id).refused(sequence_id, kind, reason)

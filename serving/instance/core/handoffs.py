"""Prefilled sequences whose blocks wait to be pulled and acknowledged, by ticket.

A ticket ends exactly once: acknowledged, cancelled, or expired without a pull. Expiry keeps a dead decode instance or
gateway from pinning blocks indefinitely.
"""

from dataclasses import dataclass, field

from serving.errors import LedgerError
from serving.instance.core.events import PullOrder
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.values.sequence import HandoffTicket


@dataclass(slots=True)
class HeldHandoffs:
    """Open tickets."""

    lease_s: float
    held: dict[str, LiveSequence] = field(default_factory=dict)
    expires_at: dict[str, float] = field(default_factory=dict)
    issued_total: int = 0
    expired_total: int = 0

    def hold(self, sequence: LiveSequence, now: float) -> str:
        """Issue a ticket.

        Returns: the ticket id; `expires_at` gives its expiry.
        Effects: sets the sequence's `ticket_id`, unique within this engine.
        """
        self.issued_total += 1
        ticket_id = f"{sequence.sequence_id}!{self.issued_total}"
        sequence.ticket_id = ticket_id
        self.held[ticket_id] = sequence
        self.expires_at[ticket_id] = now + self.lease_s
        return ticket_id

    def find(self, ticket_id: str) -> LiveSequence | None:
        """The sequence of a ticket; None if the ticket has ended or never existed."""
        return self.held.get(ticket_id)

    def expiry(self, sequence: LiveSequence) -> float | None:
        """Time at which the sequence's ticket expires; None without a ticket."""
        return None if sequence.ticket_id is None else self.expires_at.get(sequence.ticket_id)

    def end(self, sequence: LiveSequence) -> str:
        """End a sequence's ticket.

        Returns: the ticket id.
        Raises: LedgerError if it has none.
        """
        ticket_id = sequence.ticket_id
        if ticket_id is None or self.held.pop(ticket_id, None) is None:
            raise LedgerError(f"sequence {sequence.sequence_id} holds no ticket")
        del self.expires_at[ticket_id]
        return ticket_id

    def __len__(self) -> int:
        return len(self.held)


def ticket_of(sequence: LiveSequence) -> HandoffTicket:
    """The ticket with which a sequence arrived."""
    assert sequence.ticket is not None, "only handed-off sequences are pulled"
    return sequence.ticket


def pull_order(sequence: LiveSequence, ticket: HandoffTicket, blocks: SequenceBlocks) -> PullOrder | None:
    """The order to pull the missing blocks of a ticket; None if all of its blocks are already here."""
    if sequence.num_computed >= ticket.computed_tokens:
        return None
    first, targets = blocks.to_pull(sequence, ticket.computed_tokens)
    return PullOrder(sequence.sequence_id, ticket, first, targets)

"""Prefilled sequences whose blocks wait to be pulled and acknowledged, by ticket.

A ticket ends exactly once: acknowledged, cancelled, or expired without a pull. Expiry keeps a dead decode instance or
gateway from pinning blocks indefinitely.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.events import HandoffReady, PullOrder
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.values.news import Leaving, Tokens
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


# Rules of a draining engine for moving its unfinished sequences to other instances.
#
#     decoding                    held at the next step boundary, like a finished prompt; another instance pulls it
#     pulled, or computing        the same as soon as it decodes; until then a prompt's gateway is requested to move it
#     waiting                     its gateway is requested to move it
#     held                        waits to be pulled
#
# No sequence is dropped: one that no other instance can take continues on this one.

_P = SequencePhase
_STAYING = (_P.HELD, _P.CLOSING, _P.FINISHED)
_PROMPTS = (_P.WAITING, _P.FETCHING, _P.PREFILLING)


def ask_to_leave(sequences: Iterable[LiveSequence]) -> list[Leaving]:
    """Mark all sequences that may move to other instances.

    Returns: requests to gateways to move the sequences that do not decode yet.
    Effects: sets `leaving`.
    """
    departures: list[Leaving] = []
    for sequence in sequences:
        if sequence.phase in _STAYING or (sequence.holder is not None and sequence.phase is _P.ADOPTING):
            continue  # a sequence that is being taken back cannot move to another instance
        sequence.leaving = True
        if sequence.phase in _PROMPTS:
            departures.append(Leaving(sequence.sequence_id, handoff=False))
        elif sequence.phase is _P.ADOPTING:
            departures.append(Leaving(sequence.sequence_id, handoff=True))
    return departures


def ready_to_leave(running: Iterable[LiveSequence]) -> list[LiveSequence]:
    """Sequences of the batch that are to be held now. Requires that no step is in flight."""
    return [sequence for sequence in running if sequence.leaving and sequence.phase is _P.DECODING]


def hand_on_event(
    sequence: LiveSequence, ticket_id: str, blocks: tuple[BlockId, ...], hashes: tuple[BlockHash, ...]
) -> HandoffReady:
    """Event that a stream can be pulled; its tokens were already reported.

    Args:
        blocks, hashes: see `HandoffReady`.
    """
    return HandoffReady(
        first=Tokens(sequence.sequence_id, len(sequence.output)),
        ticket_id=ticket_id,
        blocks=blocks,
        hashes=hashes,
        computed_tokens=sequence.num_computed,
        drafts=sequence.drafts,
        masked_from=sequence.masked_from,
    )

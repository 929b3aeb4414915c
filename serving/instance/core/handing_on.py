"""Rules of a draining engine for moving its unfinished sequences to other instances.

    decoding                    held at the next step boundary, like a finished prompt; another instance pulls it
    pulled, or computing        the same as soon as it decodes; until then a prompt's gateway is requested to move it
    waiting                     its gateway is requested to move it
    held                        waits to be pulled

No sequence is dropped: one that no other instance can take continues on this one.
"""

from collections.abc import Iterable

from serving.ids import BlockHash, BlockId
from serving.instance.core.events import HandoffReady
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_phase import SequencePhase
from serving.values.news import Leaving, Tokens

_P = SequencePhase
_STAYING = (_P.HELD, _P.CLOSING, _P.FINISHED)
_PROMPTS = (_P.WAITING, _P.FETCHING, _P.PREFILLING)


def ask_to_leave(sequences: Iterable[LiveSequence]) -> list[Leaving]:
    """Mark all sequences that may move to other instances.

    Returns: requests to gateways to move the sequences that do not decode yet.
    Effects: sets `leaving`.
    """
    wishes: list[Leaving] = []
    for sequence in sequences:
        if sequence.phase in _STAYING or (sequence.holder is not None and sequence.phase is _P.ADOPTING):
            continue  # a sequence that is being taken back cannot move to another instance
        sequence.leaving = True
        if sequence.phase in _PROMPTS:
            wishes.append(Leaving(sequence.sequence_id, handoff=False))
        elif sequence.phase is _P.ADOPTING:
            wishes.append(Leaving(sequence.sequence_id, handoff=True))
    return wishes


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
    )

"""Admission from the waiting queue: strictly in service order, while slots and blocks are available.

The head of the queue is never overtaken. Otherwise a stream of short prompts could starve a long one, and handoffs
could starve a preempted sequence. A watermark of free blocks is kept for the running batch to grow into; without a
batch there is none, so a lone sequence that fits the pool is always admitted.
"""

from typing import NamedTuple

from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.sequence_phase import SequencePhase
from serving.instance.core.waiting_queue import WaitingQueue


class AdmissionRoom(NamedTuple):
    """Slots, blocks and tokens that an admission round may use.

    Args:
        seats: number of sequences that may still join the batch.
        keep_free: blocks to leave free, the watermark; 0 for an empty batch.
    """

    seats: int
    keep_free: int


def admit_head(
    waiting: WaitingQueue, blocks: SequenceBlocks, room: AdmissionRoom, phase: SequencePhase | None = None
) -> LiveSequence | None:
    """Take the head of the queue if it fits.

    Args:
        phase: admit only a head in this phase; None for any.
    Returns: the sequence, with blocks reserved or taken over from its holder, or None.
    Effects: removes it from the queue.
    """
    if room.seats <= 0 or not waiting.items:
        return None
    head = waiting.items[0]
    if phase is not None and head.phase is not phase:
        return None
    holder = head.holder
    if holder is not None and holder.phase is SequencePhase.HELD:
        if not blocks.take_over(head, holder):
            return None
    elif not blocks.reserve(head, room.keep_free):
        return None
    waiting.start(head)
    return head

"""Chunked prefill: prompts share the part of the step's token budget that decodes leave, in service order.

A prompt longer than the rest of the budget is cut; its next chunk is in the next step. All blocks of a prompt are
reserved when it is admitted, so a started prompt never waits for blocks; but if a window frees some of them, each
chunk allocates its blocks, as decodes do.
"""

from collections.abc import Callable

from serving.instance.core.decode_scheduler import make_room
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.sequence_phase import SequencePhase
from serving.instance.core.step_budget import StepBudget


def plan_chunks(
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    budget: StepBudget,
    preempt: Callable[[LiveSequence], None],
) -> None:
    """Plan the next chunk of each admitted prompt while budget is left.

    Args:
        running: all sequences in the batch, in service order.
        preempt: as for `plan_decodes`.
    Effects: fills `budget`; may shorten `running` from its end if a window frees blocks while sequences run.
    """
    for sequence in running:
        if budget.tokens_left <= 0:
            return
        if sequence.phase is not SequencePhase.PREFILLING:
            continue
        if blocks.slides:
            upto = sequence.num_computed + min(sequence.num_missing, budget.tokens_left)
            if not make_room(sequence, upto, running, blocks, preempt):
                continue
        budget.feed(sequence)

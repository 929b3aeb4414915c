"""Continuous batching: every decoding sequence gets its next token in every step, as long as there are free blocks.

Otherwise the last sequence in service order (possibly the requesting one) is preempted: it frees its blocks and
restarts later. Because the batch is processed in service order, a victim is never already part of this step.
"""

from collections.abc import Callable

from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.sequence_phase import SequencePhase
from serving.instance.core.step_budget import StepBudget


def plan_decodes(
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    budget: StepBudget,
    preempt: Callable[[LiveSequence], None],
    draft_tokens: int = 0,
) -> None:
    """Plan one step for each decoding sequence.

    Args:
        running: all sequences in the batch, in service order.
        preempt: takes a sequence out of `running` and frees its blocks.
        draft_tokens: tokens beyond the first that the step may add to a sequence; its blocks cover them, unless it
            fills the whole arena.
    Effects: fills `budget`; may shorten `running` from its end.
    """
    block_tokens, width, most = blocks.block_tokens, blocks.width, blocks.max_tokens
    index = 0
    while index < len(running) and budget.tokens_left > 0:
        sequence = running[index]
        index += 1
        if sequence.phase is not SequencePhase.DECODING:
            continue
        upto = min(len(sequence.tokens) + draft_tokens, most)
        if upto * width <= len(sequence.blocks) * block_tokens or make_room(sequence, upto, running, blocks, preempt):
            budget.feed(sequence)


def make_room(
    sequence: LiveSequence,
    tokens: int,
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    preempt: Callable[[LiveSequence], None],
) -> bool:
    """Grow the block table of a sequence that is not in the step yet, preempting from the end of the batch sequences
    that are not in it either. Returns: False if the sequence itself was preempted.
    """
    while not blocks.grow(sequence, tokens):
        victim = next(one for one in reversed(running) if not one.in_flight)
        preempt(victim)
        if victim is sequence:
            return False
    return True

"""Chunked prefill: prompts share what the decodes left of the step's token budget, in service order.

A prompt longer than the rest of the budget is cut; its next chunk comes in the next step. All blocks of a prompt are
reserved when it is admitted, so a prompt under way never waits for blocks.
"""

from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_phase import SequencePhase
from serving.instance.core.step_budget import StepBudget


def plan_chunks(running: list[LiveSequence], budget: StepBudget) -> None:
    """Plan the next chunk of each admitted prompt while budget is left.

    Args:
        running: all sequences in the batch, in service order.
    Effects: fills `budget`.
    """
    for sequence in running:
        if budget.tokens_left <= 0:
            return
        if sequence.phase is SequencePhase.PREFILLING:
            budget.feed(sequence)

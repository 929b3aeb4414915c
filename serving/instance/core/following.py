"""The step after the running one, planned before its tokens are known.

While a batch only decodes, the next step differs from the current one in its tokens and in one position, and the tokens
can be filled in once they are available. So its plan and everything that depends on it is made while the current step
runs. This needs counts, not tokens: a sequence that ends by its length is known beforehand. One that ends by a stop
token is not; it takes part once more, and its result is dropped.
"""

from serving.instance.core.scheduler import PlannedStep, Scheduler
from serving.instance.core.sequence import SequencePhase
from serving.instance.core.sequence_blocks import blocks_for
from serving.values.step_plan import UNKNOWN, SequenceStep, StepPlan


def plan_following(scheduler: Scheduler, running: PlannedStep, step: int, max_len: int) -> PlannedStep | None:
    """Plan the step after the running one.

    Args:
        running: the running step.
        step: number of the step to plan.
        max_len: longest prompt plus output of the instance.
    Returns: a plan for the same sequences, one `UNKNOWN` token each; None if the next step may differ: prompts, draft
    tokens, a sequence that ends by its length, capacity for a waiting one, or too few free blocks.
    Effects: grows block tables.
    """
    batch = scheduler.running.items
    if not batch or len(batch) != len(running.sequences) or scheduler.may_draft() or scheduler.may_admit():
        return None
    if any([step.drafts for step in running.plan.sequences]):
        return None
    blocks, missing = scheduler.blocks, 0
    block_tokens, width = blocks.block_tokens, blocks.width
    for sequence in batch:
        if not sequence.in_flight or sequence.phase is not SequencePhase.DECODING:
            return None
        output, known = len(sequence.output) + 1, len(sequence.tokens) + 1
        if output >= sequence.spec.sampling.max_tokens or known >= max_len:
            return None
        missing += max(0, blocks_for(known, block_tokens) * width - len(sequence.blocks))
    if missing > blocks.pool.num_free:
        return None
    steps = []
    for sequence in running.sequences:
        blocks.grow(sequence, len(sequence.tokens) + 1)
        name, start = sequence.sequence_id, sequence.num_computed + 1
        steps.append(SequenceStep(name, (UNKNOWN,), start, sequence.blocks, sequence.sample_order, alone=True))
    return PlannedStep(StepPlan(step, tuple(steps)), running.sequences)

"""Decoding speed of an instance, measured once at its start and shown to users."""

import time
from collections.abc import Callable, Sequence

from serving.errors import EngineError
from serving.ids import BlockId, SequenceId
from serving.instance.core.ports import StepExecutor
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan

ENOUGH_S = 0.25
"""No probe step starts later [s], so that models with slow steps do not delay the start."""
_STEP = -2
"""A step number that no engine uses."""


def probed_tokens_per_s(
    executor: StepExecutor,
    blocks: Sequence[BlockId],
    block_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Decode a made-up sequence within its first KV block. Call it before the engine takes its first step.

    Args:
        blocks: those with the first `block_tokens` positions of a sequence.
        clock: monotonic [s].
    Returns: decode steps per second of one sequence; the first step, with cold memory, counts only if it is the
        only one. None if the executor refuses it.
    Effects: overwrites these blocks.
    """
    token, known, marks = 0, [0], [clock()]
    try:
        for start in range(block_tokens):
            order = SampleOrder(SamplingParams(temperature=0.0), known[:1], known[1:])
            step = SequenceStep(SequenceId("probe"), (token,), start, blocks, order, alone=True)
            (token,) = executor.execute(StepPlan(_STEP, (step,))).results[0].tokens
            known.append(token)
            marks.append(clock())
            if marks[-1] - marks[0] > ENOUGH_S:
                break
    except (EngineError, ValueError):
        return None
    first = 1 if len(marks) > 2 else 0
    return (len(marks) - 1 - first) / max(marks[-1] - marks[first], 1e-9)

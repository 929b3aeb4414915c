"""Log-probabilities of prompt tokens, from the hidden states of the rows before them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from serving.values.sequence import TokenLogprobs
from serving.values.step_plan import SequenceStep

# Number of rows computed at once: bounds a [rows, vocab] float32 array.
_ROWS = 256
Logits = TypeVar("Logits")


def prompt_logprobs(
    step: SequenceStep,
    hidden: Any,  # noqa: ANN401 - an array or a tensor
    logits: Callable[[Any], Logits],
    logprobs: Callable[[Logits, Sequence[int], int], list[TokenLogprobs]],
) -> tuple[TokenLogprobs, ...]:
    """Entries for the prompt tokens that follow each fed one, as far as they are known.

    Args:
        step: the part of the plan that requests them.
        hidden: `[fed tokens, hidden]`, before the final norm, in the order of positions.
        logits: of some of these rows.
        logprobs: `token_logprobs` of the sampler for such logits.
    """
    if step.prompt_logprobs is None:
        return ()
    targets = [*step.tokens[1:]]
    if step.next_prompt_token is not None:
        targets.append(step.next_prompt_token)
    found: list[TokenLogprobs] = []
    for begin in range(0, len(targets), _ROWS):
        part = targets[begin : begin + _ROWS]
        found += logprobs(logits(hidden[begin : begin + len(part)]), part, step.prompt_logprobs)
    return tuple(found)

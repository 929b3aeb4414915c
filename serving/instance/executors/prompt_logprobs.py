"""Log-probabilities of prompt tokens, from the hidden states of the rows before them."""

from torch import Tensor

from serving.model.model import Model
from serving.model.sampler import token_logprobs
from serving.values.sequence import TokenLogprobs
from serving.values.step_plan import SequenceStep

# Number of rows computed at once: bounds a [rows, vocab] float32 tensor.
_ROWS = 256


def prompt_logprobs(model: Model, step: SequenceStep, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
    """Entries for the prompt tokens that follow each fed one, as far as they are known.

    Args:
        step: the part of the plan that requests them.
        hidden: `[fed tokens, hidden]`, before the final norm, in the order of positions.
    """
    if step.prompt_logprobs is None:
        return ()
    targets = [*step.tokens[1:]]
    if step.next_prompt_token is not None:
        targets.append(step.next_prompt_token)
    found: list[TokenLogprobs] = []
    for begin in range(0, len(targets), _ROWS):
        part = targets[begin : begin + _ROWS]
        found += token_logprobs(model.logits(hidden[begin : begin + len(part)]), part, step.prompt_logprobs)
    return tuple(found)

"""Stop rules: the only module that decides when a sequence ends.

Order of the rules: a stop token takes precedence over a length limit reached by the same token. The stop token itself
belongs to the output.
"""

from collections.abc import Collection, Set
from typing import NamedTuple

from serving.values.sequence import FinishReason, SamplingParams


class Accepted(NamedTuple):
    """Accepted sampled tokens, and the finish reason if the sequence ended with them."""

    tokens: tuple[int, ...]
    finish_reason: FinishReason | None


def finish_reason_after(
    token: int, output_tokens: int, total_tokens: int, sampling: SamplingParams, stop: Collection[int], max_len: int
) -> FinishReason | None:
    """Whether, and why, the sequence ends with `token`.

    Args:
        token: the latest token.
        output_tokens: output length with it.
        total_tokens: prompt plus output length with it.
        stop: `sampling.stop_token_ids`, as a set.
        max_len: longest allowed prompt plus output.
    """
    if token in stop and output_tokens > sampling.min_tokens:
        return FinishReason.STOP
    if output_tokens >= sampling.max_tokens or total_tokens >= max_len:
        return FinishReason.LENGTH
    return None


def accept_tokens(
    sampled: tuple[int, ...],
    output_before: int,
    total_before: int,
    sampling: SamplingParams,
    stop: Set[int],
    max_len: int,
) -> Accepted:
    """Cut newly sampled tokens at the first one that ends the sequence.

    Args:
        sampled: one token, or more from a speculative step.
        output_before, total_before: lengths without them.
    """
    room = min(sampling.max_tokens - output_before, max_len - total_before)
    if not stop or stop.isdisjoint(sampled):  # only lengths matter: no need to check each token
        if len(sampled) < room:
            return Accepted(sampled, None)
        return Accepted(sampled[: max(1, room)], FinishReason.LENGTH)
    for count, token in enumerate(sampled, start=1):
        reason = finish_reason_after(token, output_before + count, total_before + count, sampling, stop, max_len)
        if reason is not None:
            return Accepted(sampled[:count] if count < len(sampled) else sampled, reason)
    return Accepted(sampled, None)

"""Accept a job or refuse it with an honest time to come back.

A queue that is longer than the pools can work off in a bearable time only turns a quick refusal into a late one, so the
requests and the tokens that wait for their first token are both bounded.
"""

from msgspec import Struct

from serving.policy.throughput import retry_after_s


class AdmissionLimits(Struct, frozen=True, gc=False):
    """Bounds of one gateway's queue: sequences and prompt tokens that wait for a first token."""

    max_queued_sequences: int
    max_queued_tokens: int


class GatewayLoad(Struct, frozen=True, gc=False):
    """What waits now.

    Args:
        queued_sequences, queued_tokens: accepted, no first token yet.
        tokens_per_s: prompt tokens that the prefill side has recently computed per second; 0 = not known yet.
    """

    queued_sequences: int
    queued_tokens: int
    tokens_per_s: float


class AdmissionDecision(Struct, frozen=True, gc=False):
    """`retry_after_s` is 0 when accepted."""

    accepted: bool
    reason: str
    retry_after_s: float = 0.0


def decide_admission(load: GatewayLoad, limits: AdmissionLimits, sequences: int, tokens: int) -> AdmissionDecision:
    """Judge a job of `sequences` sequences with `tokens` prompt tokens together.

    A job larger than a whole limit is accepted when nothing waits: refusing it would be for ever.

    Returns: a refusal says when the excess will be worked off at the recent rate.
    """
    if load.queued_sequences == 0:
        return AdmissionDecision(True, "nothing waits")
    excess_tokens = load.queued_tokens + tokens - limits.max_queued_tokens
    excess_sequences = load.queued_sequences + sequences - limits.max_queued_sequences
    if excess_tokens <= 0 and excess_sequences <= 0:
        return AdmissionDecision(True, f"{load.queued_sequences} sequences, {load.queued_tokens} tokens wait")
    if excess_sequences > 0:
        reason = f"{load.queued_sequences} sequences wait, {limits.max_queued_sequences} may"
    else:
        reason = f"{load.queued_tokens} prompt tokens wait, {limits.max_queued_tokens} may"
    mean_tokens = load.queued_tokens / load.queued_sequences
    excess = max(excess_tokens, round(excess_sequences * mean_tokens), 1)
    wait = retry_after_s(min(excess, max(load.queued_tokens, 1)), load.tokens_per_s)
    return AdmissionDecision(False, reason, wait)

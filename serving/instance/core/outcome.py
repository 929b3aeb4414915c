"""Evaluates a step's result for one sequence: accepted tokens, and the events made from them."""

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.events import HandoffReady
from serving.instance.core.finish import Accepted, accept_tokens
from serving.instance.core.scheduler import PlannedStep
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.values.news import Tokens
from serving.values.sequence import TOO_LARGE, DraftUse, FinishReason, TokenLogprobs
from serving.values.step_plan import SequenceResult, SequenceStep, StepResult

_PROMPT_ONLY = Accepted((), FinishReason.LENGTH)
_DEAD_END = Accepted((), FinishReason.GRAMMAR)
_GRAMMAR_LIMIT = Accepted((), FinishReason.GRAMMAR_LIMIT)


def answered(planned: PlannedStep, result: StepResult) -> list[tuple[LiveSequence, SequenceStep, SequenceResult]]:
    """Each sequence of a step, with its part of the plan and of the result.

    Raises: LedgerError if the result does not match the plan.
    """
    steps, results = planned.plan.sequences, result.results
    if result.step != planned.plan.step or len(results) != len(steps):
        raise LedgerError(f"result of step {result.step} does not match the plan of step {planned.plan.step}")
    for sequence, outcome in zip(planned.sequences, results, strict=True):
        if outcome.sequence_id != sequence.sequence_id:
            raise LedgerError(f"result for {outcome.sequence_id} where {sequence.sequence_id} was planned")
    return list(zip(planned.sequences, steps, results, strict=True))


def continued(
    sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult, max_len: int, block_tokens: int
) -> Tokens | None:
    """Book a step of a stream that only goes on: the common case of `book_step`, `accepted_from` and `tokens_event`.

    Returns: the event of its tokens; None, without changes, if the sequence needs those functions.
    Effects: as theirs; of the blocks at most one became full.
    """
    tokens, output, sampling = outcome.tokens, sequence.output, sequence.spec.sampling
    count, position, computed, fed = len(tokens), len(output), sequence.num_computed, len(step.tokens)
    if sequence.phase is not SequencePhase.DECODING or not count or step.sample is None or outcome.failure:
        return None
    if count >= sampling.max_tokens - position or count >= max_len - sequence.prompt_tokens - position:
        return None
    if sequence.stop_tokens and not sequence.stop_tokens.isdisjoint(tokens):
        return None
    if not sequence.first_reported or sequence.preempted or sequence.masked_tokens or outcome.prompt_logprobs:
        return None
    if count > 1 and (computed + fed) // block_tokens != computed // block_tokens:
        return None  # a block is full before the new tokens, and perhaps another one with them
    sequence.num_computed = computed + fed + count - 1
    output.extend(tokens)
    return Tokens(sequence.sequence_id, position, tokens, outcome.logprobs)


def book_step(sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult) -> None:
    """Record that a step's tokens are now in the KV cache.

    Effects: `num_computed` and `prompt_logprobs` of the sequence.
    """
    sequence.num_computed += len(step.tokens)
    if outcome.prompt_logprobs:
        # A chunk of a resumed sequence may reach into its output; only prompt positions are requested.
        room = sequence.prompt_tokens - 1 - len(sequence.prompt_logprobs)
        sequence.prompt_logprobs.extend(outcome.prompt_logprobs[:room])


def accepted_from(sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult, max_len: int) -> Accepted | None:
    """Output tokens of a booked step.

    Args:
        max_len: longest prompt plus output of the instance.
    Returns: None while the prompt is unfinished.
    Raises: LedgerError if a token was requested and the executor returned none.
    """
    if step.sample is None:
        # With max_tokens = 0 only the prompt is computed, for its log-probabilities.
        return _PROMPT_ONLY if sequence.num_missing == 0 else None
    if outcome.failure:
        return _GRAMMAR_LIMIT if outcome.failure.startswith(TOO_LARGE) else _DEAD_END
    if not outcome.tokens:
        raise LedgerError(f"the executor sampled nothing for {sequence.sequence_id}")
    output, total = len(sequence.output), sequence.num_known
    return accept_tokens(outcome.tokens, output, total, step.sample.sampling, sequence.stop_tokens, max_len)


def tokens_event(
    sequence: LiveSequence, accepted: Accepted, outcome: SequenceResult, drafts: DraftUse | None = None
) -> Tokens:
    """Event of accepted tokens; the first one includes the facts reported once.

    A step may give several tokens (speculation, or many iterations at once in virtual time); all but the last were fed.

    Args:
        drafts: the use of the step's draft tokens; None if it had none.
    Effects: appends the tokens, counts those that were fed; marks the first report, and preemptions so far, as made.
    """
    name, position, preempted = sequence.sequence_id, len(sequence.output), sequence.take_preempted()
    logprobs = outcome.logprobs[: len(accepted.tokens)]
    sequence.num_computed += max(0, len(accepted.tokens) - 1)
    sequence.append(accepted.tokens)
    if sequence.first_reported:
        reason = accepted.finish_reason
        return Tokens(
            name, position, accepted.tokens, logprobs, finish_reason=reason, drafts=drafts, preempted=preempted,
            masked=sequence.take_masked(),
        )  # fmt: skip
    sequence.first_reported = True
    sequence.prompt_logprobs_wanted = None  # from now on a recomputation may use cached blocks
    return _first(sequence, position, accepted, logprobs, preempted, drafts)


def _first(
    sequence: LiveSequence,
    position: int,
    accepted: Accepted,
    logprobs: tuple[TokenLogprobs, ...],
    preempted: int,
    drafts: DraftUse | None = None,
) -> Tokens:
    """First event of a sequence on this instance, with the facts reported once."""
    return Tokens(
        sequence.sequence_id,
        position,
        accepted.tokens,
        logprobs,
        tuple(sequence.prompt_logprobs),
        sequence.cached_tokens,
        accepted.finish_reason,
        sequence.pool_use,
        drafts,
        sequence.waited_s,
        preempted,
        sequence.take_masked(),
    )


def handoff_event(
    sequence: LiveSequence,
    accepted: Accepted,
    outcome: SequenceResult,
    ticket_id: str,
    blocks: tuple[BlockId, ...],
    hashes: tuple[BlockHash, ...],
) -> HandoffReady:
    """Event that a prefilled sequence can be pulled.

    Args:
        blocks, hashes: see `HandoffReady`.
    Effects: appends the tokens; marks preemptions so far as reported.
    """
    position, computed = len(sequence.output), sequence.num_computed
    sequence.append(accepted.tokens)
    return HandoffReady(
        first=_first(sequence, position, accepted, outcome.logprobs[: len(accepted.tokens)], sequence.take_preempted()),
        ticket_id=ticket_id,
        blocks=blocks,
        hashes=hashes,
        computed_tokens=computed,
        drafts=outcome.drafts,
        masked_from=sequence.masked_from,
    )

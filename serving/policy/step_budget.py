"""The throw-away accumulator of one step: what still fits and what was planned so far."""

from serving.policy.sequence import LiveSequence
from serving.policy.step_plan import SequenceStep


class StepBudget:
    """Token budget of the step being formed."""

    __slots__ = ("sequences", "steps", "tokens_left")

    def __init__(self, tokens: int) -> None:
        """
        Args:
            tokens: most tokens that the step may feed.
        """
        self.tokens_left = tokens
        self.sequences: list[LiveSequence] = []
        self.steps: list[SequenceStep] = []

    def feed(self, sequence: LiveSequence) -> None:
        """Plan as many missing tokens of `sequence` as fit, and its sampling if they are the last.

        Effects: takes from the budget, marks the sequence as in flight.
        """
        tokens, start = sequence.tokens, sequence.num_computed
        count = min(len(tokens) - start, self.tokens_left)
        end = start + count
        wanted, following = sequence.prompt_logprobs_wanted, None
        if wanted is not None:
            prompt_tokens = len(sequence.spec.prompt)
            if start >= prompt_tokens:
                wanted = None
            elif end < prompt_tokens:
                following = tokens[end]
        sample = sequence.sample_order if end == len(tokens) and sequence.samples else None
        self.steps.append(
            SequenceStep(sequence.sequence_id, tokens[start:end], start, sequence.blocks, sample, wanted, following)
        )
        self.sequences.append(sequence)
        self.tokens_left -= count
        sequence.in_flight = True

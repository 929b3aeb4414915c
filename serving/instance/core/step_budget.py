"""Temporary accumulator for one step: the remaining budget and what is planned so far."""

from serving.instance.core.draft_planner import DraftPlanner
from serving.instance.core.sequence import LiveSequence
from serving.values.step_plan import SequenceStep


class StepBudget:
    """Token budget of the step being formed."""

    __slots__ = ("_planner", "_speculates", "_unserved", "sequences", "steps", "tokens_left")

    def __init__(self, tokens: int, planner: DraftPlanner | None = None, running: int = 0) -> None:
        """
        Args:
            tokens: maximum number of tokens that the step may feed, including draft tokens.
            planner: puts draft tokens into the step; None = no speculation.
            running: sequences in the batch: draft tokens leave a token and a free block for each that is still to be
                fed.
        """
        self.tokens_left = tokens
        self._planner = planner
        self._speculates = planner is not None and planner.speculation is not None
        self._unserved = running
        self.sequences: list[LiveSequence] = []
        self.steps: list[SequenceStep] = []

    def feed(self, sequence: LiveSequence) -> None:
        """Plan as many missing tokens of `sequence` as fit, and its sampling and draft tokens if they are the last.

        Effects: takes from the budget, marks the sequence as in flight; as `DraftPlanner.share`.
        """
        tokens, start = sequence.tokens, sequence.num_computed
        known, prompt_tokens = len(tokens), len(sequence.spec.prompt)
        alone = start >= prompt_tokens
        end = min(known if alone else prompt_tokens, start + self.tokens_left)
        wanted, following = sequence.prompt_logprobs_wanted, None
        if wanted is not None:
            if alone:
                wanted = None
            elif end < prompt_tokens:
                following = tokens[end]
        sample = sequence.sample_order if end == known and sequence.samples else None
        self.tokens_left -= end - start
        name, fed, blocks = sequence.sequence_id, tokens.span(start, end), sequence.blocks
        if self._planner is None or not (self._speculates or sequence.drafts):
            self._unserved -= 1
            self.steps.append(SequenceStep(name, fed, start, blocks, sample, wanted, following, alone=alone))
        else:
            self._unserved = spare = max(0, self._unserved - 1)
            share = self._planner.share(
                sequence, samples=sample is not None, spare_tokens=self.tokens_left - spare, spare_blocks=spare
            )
            if end < known and share.next_drafts is not None:
                following = tokens[end]
            self.tokens_left -= len(share.drafts)
            self.steps.append(SequenceStep(name, fed, start, blocks, sample, wanted, following, *share, alone))
        self.sequences.append(sequence)
        sequence.in_flight = True

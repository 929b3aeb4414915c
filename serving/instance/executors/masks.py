"""Masks of one step, filled before its tokens are drawn: for draws in torch."""

from collections.abc import Sequence

from serving.errors import EngineError, GrammarError
from serving.grammar.matcher import Allowed, Matchers, allowed_rows
from serving.ids import SequenceId
from serving.model.sampler import Mask
from serving.values.step_plan import SequenceStep


class StepMasks:
    """Tokens that the grammars of a step's sequences allow, for each row that is drawn from."""

    def __init__(self, matchers: Matchers | None, steps: Sequence[SequenceStep]) -> None:
        """
        Raises: EngineError if there are grammars and no matchers.
        """
        self.failures: dict[SequenceId, str] = {}
        """Why a sequence cannot go on, for those that cannot."""
        self._rows: dict[SequenceId, list[Allowed]] = {}
        wanting = [step for step in steps if step.sample is not None and step.sample.sampling.grammar is not None]
        if not wanting:
            return
        if matchers is None:
            raise EngineError("a sequence has a grammar, and this executor was given no vocabulary")
        matchers.begin_step()
        for step in wanting:
            try:
                assert step.sample is not None
                matcher = matchers.at(step.sequence_id, step.sample)
                assert matcher is not None
                self._rows[step.sequence_id] = allowed_rows(matcher, step.drafts)
            except GrammarError as error:
                self.failures[step.sequence_id] = str(error)

    def rows(self, step: SequenceStep) -> list[Mask]:
        """One mask for each row that a sequence draws from: the last token's, and its guesses'. None behind a guess
        that is not allowed.
        """
        known = self._rows.get(step.sequence_id, ())
        return [*known, *([None] * (len(step.drafts) + 1 - len(known)))]

    def usable(self, step: SequenceStep) -> int:
        """Draws of a sequence that count: none if it fails."""
        if step.sequence_id in self.failures:
            return 0
        return len(self._rows.get(step.sequence_id, ())) or len(step.drafts) + 1

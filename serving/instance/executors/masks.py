"""Masks of one step for sampling in torch, computed before its tokens are sampled."""

from collections.abc import Sequence

from serving.errors import EngineError, GrammarError
from serving.grammar.matcher import Allowed, Matchers, allowed_rows, limits_tokens, permitted
from serving.ids import SequenceId
from serving.model.host_sampler import Mask
from serving.values.step_plan import SampleOrder, SequenceStep


class StepMasks:
    """Tokens that the grammars and lists of a step's sequences allow, for each sampled row."""

    def __init__(self, matchers: Matchers | None, steps: Sequence[SequenceStep], size: int) -> None:
        """
        Args:
            size: tokens of the vocabulary.
        Raises: EngineError if there are grammars but no matchers.
        """
        self.failures: dict[SequenceId, str] = {}
        """Sequences that cannot continue, with the reason."""
        self._rows: dict[SequenceId, list[Allowed]] = {}
        drawing = [step for step in steps if step.sample is not None]
        self._follow_grammars(matchers, [s for s in drawing if s.sample and s.sample.sampling.grammar is not None])
        for step in drawing:
            if step.sample is not None and limits_tokens(step.sample.sampling):
                self._limit(step, step.sample, size)

    def _follow_grammars(self, matchers: Matchers | None, wanting: Sequence[SequenceStep]) -> None:
        if not wanting:
            return
        if matchers is None:
            raise EngineError("a sequence has a grammar, but this executor has no vocabulary")
        matchers.begin_step()
        for step in wanting:
            try:
                assert step.sample is not None
                matcher = matchers.at(step.sequence_id, step.sample)
                assert matcher is not None
                self._rows[step.sequence_id] = allowed_rows(matcher, step.drafts)
            except GrammarError as error:
                self.failures[step.sequence_id] = str(error)

    def _limit(self, step: SequenceStep, order: SampleOrder, size: int) -> None:
        """Combine with the lists' mask; such sequences are fed no draft tokens."""
        if step.sequence_id in self.failures:
            return
        found = permitted(order.sampling, order.output, size)
        for row in self._rows.get(step.sequence_id, ()):
            found &= row
        self._rows[step.sequence_id] = [found]
        if not found.any():
            self.failures[step.sequence_id] = "no token is left that its grammar and its lists allow"

    def rows(self, step: SequenceStep) -> list[Mask]:
        """One mask for each row from which a sequence samples: the last token's, and its draft tokens'. None after a
        draft token that is not allowed.
        """
        known = self._rows.get(step.sequence_id, ()) if step.sequence_id not in self.failures else ()
        return [*known, *([None] * (len(step.drafts) + 1 - len(known)))]

    def usable(self, step: SequenceStep) -> int:
        """Number of a sequence's samples that count; 0 if it fails."""
        if step.sequence_id in self.failures:
            return 0
        return len(self._rows.get(step.sequence_id, ())) or len(step.drafts) + 1

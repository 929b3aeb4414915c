"""Grammars in native steps: the step gets masks from matchers when it samples, and reports the sampled tokens."""

from collections.abc import Sequence

from serving.errors import GrammarError
from serving.grammar.guidance import GuidanceRoute, PythonRoute
from serving.grammar.guidance_c import CRoute, load
from serving.grammar.matcher import Matcher, Matchers
from serving.ids import SequenceId
from serving.instance.executors.native_batch import NativeBatch
from serving.model.native import library
from serving.model.native.text_tokens import TextTokens
from serving.values.step_plan import SequenceStep


def route_for_steps() -> GuidanceRoute:
    """The llguidance route with matchers for native steps; its Python classes if that is unavailable.

    Effects: logs once if it is unavailable.
    """
    native, functions = library.load(), load()
    if native is None or functions is None:
        return PythonRoute()
    return CRoute(functions, lambda encode: TextTokens(native, encode))


class StepMatchers:
    """Matchers of one native step.

    Args:
        matchers: all of the executor's.
        steps: the step's sequences.
        batch: of the same sequences; receives the addresses.
        drawn: tokens sampled by the previous step, if the batch was laid out before they were known.
    Attributes:
        failures: why sequences got no token.
        forced: indices of sequences with grammar-forced draft tokens.
    """

    def __init__(
        self,
        matchers: Matchers,
        steps: Sequence[SequenceStep],
        batch: NativeBatch,
        drawn: Sequence[tuple[int, ...]] | None,
    ) -> None:
        self.failures: dict[SequenceId, str] = {}
        self.forced: set[int] = set()
        self._all = matchers
        self._steps, self._of = steps, batch.grammar_of
        matchers.begin_step()
        self._found = [
            self._find(steps[index], length, None if drawn is None else drawn[index])
            for index, length in zip(batch.grammar_of, batch.output_lengths, strict=True)
        ]
        batch.put_matchers(self._found)

    def drew(self, tokens: Sequence[tuple[int, ...]], drafts: Sequence[tuple[int, ...]]) -> None:
        """Record a finished step. Effects: notes why sequences got no token, and whose draft tokens are forced.

        Args:
            tokens, drafts: of each sequence of the step.
        """
        for index, matcher in zip(self._of, self._found, strict=True):
            if matcher is None:
                continue
            if own := tokens[index]:
                matcher.drew(own)
            else:
                self.failures[self._steps[index].sequence_id] = matcher.why_none()
            # Forced draft tokens replace those of the draft layer. If both are possible, query which ones they are.
            if drafts[index] and (not self._steps[index].next_drafts or matcher.forced(1)):
                self.forced.add(index)

    def forget(self) -> None:
        """Drop the matchers of a failed step, whose state is unknown."""
        self._all.forget([self._steps[index].sequence_id for index in self._of])

    def _find(self, step: SequenceStep, length: int, drawn: tuple[int, ...] | None) -> Matcher | None:
        """The matcher after an output of that length; None if there cannot be one."""
        name, order = step.sequence_id, step.sample
        assert order is not None
        try:
            if drawn is None:
                return self._all.behind(name, order.sampling, order.output)
            if not drawn:  # it ended in the previous step
                return None
            # The engine may be recording the previous step's tokens concurrently, so the output's end cannot be read.
            kept = self._all.kept(name, length, drawn[0])
            return kept or self._all.behind(name, order.sampling, [*order.output[: length - 1], *drawn])
        except GrammarError as error:
            self.failures[name] = str(error)
            return None

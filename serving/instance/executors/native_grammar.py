"""Grammars in native steps: the step gets masks from matchers when it samples, and reports the sampled tokens."""

import ctypes
from array import array
from collections.abc import Callable, Sequence

from serving.errors import GrammarError, ModelError
from serving.grammar.guidance import CRoute, GuidanceRoute, PythonRoute, load
from serving.grammar.matcher import Matcher, Matchers
from serving.ids import SequenceId
from serving.instance.executors.native_batch import NativeBatch
from serving.model.native import library
from serving.model.native.library import Library
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


# Token ids of texts for native code, which caches them and requests each text once.

_Address, _Size = ctypes.c_void_p, ctypes.c_size_t
_Ask = ctypes.CFUNCTYPE(_Size, _Address, _Address, _Size, _Address, _Size)


class TextTokens:
    """A cm_text_tokens with its `cm_tokenize` function.

    Args:
        encode: returns the tokens of a text; called from any thread.
    Attributes:
        function: address of cm_tokenize.
        data: its first argument; valid while this object exists.
    Raises: ModelError if there is no memory.
    """

    def __init__(self, library: Library, encode: Callable[[str], Sequence[int]]) -> None:
        def ask(_data: int, text: int, size: int, tokens: int, most: int) -> int:
            ids = encode(ctypes.string_at(text, size).decode(errors="replace"))
            if kept := array("I", ids[:most]):
                ctypes.memmove(tokens, kept.buffer_info()[0], len(kept) * kept.itemsize)
            return len(ids)

        self._functions = library.functions
        self._ask = _Ask(ask)
        self.function: int = ctypes.cast(self._functions.cm_tokenize, ctypes.c_void_p).value or 0
        self.data: int = self._functions.cm_text_tokens_new(self._ask) or 0
        if not self.data:
            raise ModelError("no memory for the tokens of texts")

    def __del__(self) -> None:
        self._functions.cm_text_tokens_free(self.data)

"""Responses of a simulated instance that follow a grammar: tokens sampled among the allowed ones.

As with other simulated responses, the seed determines them. Sampling prefers tokens that end the response, to keep it
short: stop tokens if they are allowed, and in half of the cases tokens that close a text, a list, or an object.
"""

from collections.abc import Sequence

import numpy as np

from serving.grammar.matcher import Allowed, Matchers
from serving.ids import SequenceId
from serving.instance.core.placeholder import placeholder_token
from serving.values.step_plan import SampleOrder

_CHANCE = 0x636C6F7365
_CLOSING = frozenset(b'"]},: ')


class GrammarAnswers:
    """Generates the tokens of one instance's requests with a grammar. Used by its executor's thread only."""

    def __init__(self, matchers: Matchers, words: Sequence[int]) -> None:
        """
        Args:
            words: ids that decode to printable text on their own, preferred where allowed.
        """
        self._matchers = matchers
        self._words = list(words)
        self._kinds: tuple[Allowed, Allowed] | None = None

    def begin_step(self) -> None:
        """Start a step."""
        self._matchers.begin_step()

    def tokens(self, name: SequenceId, seed: int, order: SampleOrder, count: int) -> tuple[int, ...]:
        """The next tokens of a response, fewer if it ends.

        Raises: GrammarError if the grammar allows none.
        """
        matcher, begin, given = self._matchers.at(name, order), len(order.output), []
        assert matcher is not None
        stops = order.sampling.stop_token_ids
        for position in range(begin, begin + count):
            token = self._draw(matcher.allowed(), stops, seed, position)
            matcher.take((token,))
            given.append(token)
            if token in stops:
                break
        return tuple(given)

    def _draw(self, allowed: Allowed, stops: Sequence[int], seed: int, position: int) -> int:
        words, closing = self._kinds or self._sort()
        ends = [token for token in stops if token < len(allowed) and allowed[token]]
        if ends:
            return ends[0]
        candidates = allowed & closing
        if not candidates.any() or placeholder_token(seed ^ _CHANCE, position, 2):
            candidates = allowed & words
        if not candidates.any():
            candidates = allowed
        found = np.flatnonzero(candidates)
        return int(found[placeholder_token(seed, position, len(found))])

    def _sort(self) -> tuple[Allowed, Allowed]:
        """Masks of words, and of closing tokens."""
        vocabulary = self._matchers.grammars.vocabulary
        words, closing = np.zeros(vocabulary.size, np.bool_), np.zeros(vocabulary.size, np.bool_)
        words[self._words] = True
        for index, text in enumerate(vocabulary.tokens):
            closing[index] = bool(text) and index not in vocabulary.special and _CLOSING.issuperset(text)
        self._kinds = words, closing
        return self._kinds

"""Completions of a simulated instance: placeholder tokens, with the length set by the request or its seed.

A completion depends only on the request's seed, at temperature 0 only on its prompt, never on batch, replica or time,
so a request resumed on another instance continues with the same tokens. Without `max_tokens` its length is random, and
it ends with the end token.
"""

import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.grammar.matcher import Allowed, Matchers
from serving.ids import SequenceId
from serving.instance.core.placeholder import mix64, placeholder_token, rate_of, steps_for, tokens_after
from serving.values.step_plan import SampleOrder

_LENGTH = 0x6C656E677468


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """The predetermined part of one request's response.

    Args:
        limit: tokens of the whole response.
        end_token: its last token; None = an ordinary one, because a limit ends the response.
        extra: mean number of draft tokens that verification accepts per step.
        seed: determines its tokens.
    """

    limit: int
    end_token: int | None
    extra: float
    seed: int = 0


class SimulatedAnswers:
    """Generates the tokens of all requests of one instance.

    Args:
        vocabulary: usable ids; each must decode to text on its own, and none may be an end token.
        max_model_len: longest prompt plus output [tokens]; a request that may fill it counts as unlimited.
        mean_tokens: mean length of completions without a limit.
        drafts: tokens drafted in each decode step.
        acceptance: probability that one is accepted, or by position; see `rate_of`.
    """

    def __init__(
        self,
        vocabulary: Sequence[int],
        max_model_len: int,
        mean_tokens: int,
        drafts: int,
        acceptance: float | tuple[float, ...],
    ) -> None:
        self._vocabulary = tuple(vocabulary)
        self._max_model_len = max_model_len
        self._mean_tokens = mean_tokens
        self._drafts = drafts
        self._acceptance = acceptance

    def answer(self, order: SampleOrder) -> SimulatedAnswer:
        """The response to a request."""
        sampling, seed = order.sampling, _seed(order)
        limit, end = sampling.max_tokens, None
        open_ended = len(order.prompt) + limit >= self._max_model_len and sampling.grammar is None
        if open_ended and sampling.stop_token_ids:
            drawn = max(self._drawn(seed), sampling.min_tokens + 1)
            if drawn <= limit:
                limit, end = drawn, sampling.stop_token_ids[0]
        return SimulatedAnswer(limit, end, rate_of(seed, limit, self._drafts, self._acceptance), seed)

    def decoded(self, answer: SimulatedAnswer, order: SampleOrder) -> int:
        """Number of tokens that the next decode step gives, at least one."""
        given = max(0, len(order.output) - 1)  # the first one was prefill's
        count = tokens_after(steps_for(given, answer.extra) + 1, answer.extra) - given
        return max(1, min(count, answer.limit - len(order.output)))

    def tokens(self, answer: SimulatedAnswer, order: SampleOrder, count: int) -> tuple[int, ...]:
        """The next tokens of a response."""
        seed, words, begin = answer.seed, self._vocabulary, len(order.output)
        given = [words[placeholder_token(seed, begin + i, len(words))] for i in range(count)]
        if answer.end_token is not None and begin + count >= answer.limit:
            given[-1] = answer.end_token
        return tuple(given)

    def _drawn(self, seed: int) -> int:
        """Length of a completion without a limit, geometrically distributed, so the end is memoryless."""
        share = ((mix64(seed ^ _LENGTH) >> 11) + 0.5) / (1 << 53)
        if self._mean_tokens <= 1:
            return 1
        return 1 + int(math.log(share) / math.log1p(-1.0 / self._mean_tokens))


def _seed(order: SampleOrder) -> int:
    """The request's seed; for greedy sampling a digest of the prompt, since a model's output depends only on that."""
    if order.sampling.temperature > 0:
        return order.sampling.seed
    digest = hashlib.blake2b(array("q", order.prompt).tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


# Responses of a simulated instance that follow a grammar: tokens sampled among the allowed ones.
#
# As with other simulated responses, the seed determines them. Sampling prefers tokens that end the response, to keep it
# short: stop tokens if they are allowed, and in half of the cases tokens that close a text, a list, or an object.

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

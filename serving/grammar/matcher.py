"""Matchers of outputs in progress: which token may come next.

A matcher is a function of a grammar and an output, as KV is of tokens. So each instance rebuilds the matcher of a
sequence that it computes; handed-off, resumed and preempted sequences transfer no matcher state. Matchers kept between
steps are a cache, which may be dropped at any time.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError
from serving.grammar.guidance import RawMatcher
from serving.grammar.text import complaint
from serving.grammar.vocabulary import Vocabulary
from serving.ids import SequenceId
from serving.values.sequence import Grammar, SamplingParams
from serving.values.step_plan import SampleOrder

Allowed = NDArray[np.bool_]
"""`[vocabulary]`: the tokens that may come next."""

_SWEEP = 64
"""Steps between sweeps of unused matchers."""
_UNUSED = 256
"""Steps for which a matcher is kept though no step needed it."""
_NO_WAY_ON = "no token can follow that its grammar allows"


class GrammarSource(Protocol):
    """Compiled grammars; see `Grammars`."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that they are about."""
        ...

    @property
    def step_functions(self) -> Sequence[int]:
        """C functions for matchers; empty = these have no addresses."""
        ...

    def fresh(self, grammar: Grammar) -> RawMatcher:
        """A new matcher of an empty output, owned by the caller.

        Raises: GrammarError.
        """
        ...


class Matcher:
    """A grammar and an output that follows it so far."""

    def __init__(self, matcher: RawMatcher, size: int, stops: Iterable[int]) -> None:
        """
        Args:
            matcher: of an empty output; owned by this object.
            size: tokens of the model's vocabulary.
            stops: tokens that end the output.
        """
        self._matcher = matcher
        self._size = size
        self._stops = frozenset(token for token in stops if token < size)
        self.stops = array("i", sorted(self._stops))
        """Tokens that end the output, for native code."""
        self._words = np.zeros(-(-(size + 1) // 32), np.uint32)
        self.length = 0
        """Tokens of the output."""
        self.last = -1
        """The last of them."""
        self.used = 0
        """Step that needed it last."""

    def allowed(self) -> Allowed:
        """Tokens that may come next; stop tokens, where the output is complete.

        Raises: GrammarError if there is none, or finding them takes too much.
        """
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)
        stops = list(self._stops)
        bits[stops] = bits[self._size]
        found = bits[: self._size]
        if not found.any():
            raise GrammarError(_NO_WAY_ON)
        return found

    def take(self, tokens: Sequence[int]) -> None:
        """Append these tokens to the output. Stop tokens are not part of the grammar and are ignored.

        Raises: GrammarError if the grammar does not allow one of them.
        """
        for token in tokens:
            if token not in self._stops and not self._matcher.consume_token(token):
                self._check()
            self.length += 1
            self.last = token

    @property
    def address(self) -> int:
        """Where native code finds it; only with `GrammarSource.step_functions`."""
        return int(self._matcher.address)  # type: ignore[attr-defined]

    def drew(self, tokens: Sequence[int]) -> None:
        """Record tokens that native code sampled and already passed to the matcher at `address`."""
        self.length += len(tokens)
        self.last = tokens[-1]

    def why_none(self) -> str:
        """Why native code got no token here."""
        return complaint(self._matcher.get_error()) if self._matcher.is_error() else _NO_WAY_ON

    def forced(self, most: int) -> tuple[int, ...]:
        """Tokens that must come next, as far as there is only one way on."""
        return tuple(self._matcher.compute_ff_tokens()[:most])

    def copy(self) -> "Matcher":
        """Another one for the same output."""
        other = Matcher(self._matcher.deep_copy(), self._size, self._stops)
        other.length, other.last = self.length, self.last
        return other

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(complaint(self._matcher.get_error()))


class Matchers:
    """Matchers of one executor's sequences. For its thread alone."""

    def __init__(self, grammars: GrammarSource) -> None:
        self.grammars = grammars
        self._known: dict[SequenceId, Matcher] = {}
        self._steps = 0

    def begin_step(self) -> None:
        """Start a step. Effects: periodically drops matchers unused for many steps."""
        self._steps += 1
        if self._steps % _SWEEP == 0:
            oldest = self._steps - _UNUSED
            self._known = {name: one for name, one in self._known.items() if one.used >= oldest}

    def at(self, name: SequenceId, order: SampleOrder) -> Matcher | None:
        """The matcher of a sequence that is about to draw; None if it has no grammar.

        Raises: GrammarError if its output does not follow the grammar, or that cannot be compiled.
        """
        if order.sampling.grammar is None:
            return None
        return self.behind(name, order.sampling, order.output)

    def behind(self, name: SequenceId, sampling: SamplingParams, output: Sequence[int]) -> Matcher:
        """The matcher of a sequence with a grammar, behind such an output.

        Raises: as `at`.
        """
        assert sampling.grammar is not None
        matcher = self._known.pop(name, None)
        if matcher is None or not _follows(output, matcher):
            fresh = self.grammars.fresh(sampling.grammar)
            matcher = Matcher(fresh, self.grammars.vocabulary.size, sampling.stop_token_ids)
        matcher.take(output[matcher.length :])
        matcher.used = self._steps
        self._known[name] = matcher
        return matcher

    def kept(self, name: SequenceId, length: int, last: int) -> Matcher | None:
        """The matcher behind an output of such a length and last token, if there is one already."""
        matcher = self._known.get(name)
        if matcher is None or matcher.length != length or matcher.last != last:
            return None
        matcher.used = self._steps
        return matcher

    def forget(self, names: Iterable[SequenceId]) -> None:
        """Drop matchers whose state is unknown."""
        for name in names:
            self._known.pop(name, None)


def allowed_rows(matcher: Matcher, drafts: Collection[int]) -> list[Allowed]:
    """Tokens allowed at the next position, and behind each draft, up to the first one that is not allowed itself.

    Raises: GrammarError if none is allowed at the next position.
    """
    rows = [matcher.allowed()]
    if not drafts:
        return rows
    ahead = matcher.copy()
    try:
        for draft in drafts:
            if not rows[-1][draft]:
                break
            ahead.take((draft,))
            rows.append(ahead.allowed())
    except GrammarError:  # the step that draws there finds out
        pass
    return rows


def _follows(output: Sequence[int], matcher: Matcher) -> bool:
    """Whether a matcher has seen the beginning of this output. A sequence's output only grows."""
    length = matcher.length
    return length <= len(output) and (length == 0 or output[length - 1] == matcher.last)


# Tokens that a request allows or forbids by id: a mask that is combined with that of its grammar.


def limits_tokens(sampling: SamplingParams) -> bool:
    """Whether a request names tokens that it allows, or words that it forbids."""
    return bool(sampling.allowed_token_ids or sampling.bad_words)


def permitted(sampling: SamplingParams, output: Sequence[int], size: int) -> Allowed:
    """Tokens that may follow an output: the allowed ones, except those that would complete a forbidden word.

    Args:
        size: tokens of the vocabulary.
    """
    found = _named(sampling.allowed_token_ids, size).copy() if sampling.allowed_token_ids else np.ones(size, np.bool_)
    length = len(output)
    for word in sampling.bad_words:
        before = len(word) - 1
        if before <= length and all(output[length - before + i] == word[i] for i in range(before)):
            found[word[-1]] = False
    return found


@lru_cache(maxsize=64)
def _named(tokens: tuple[int, ...], size: int) -> Allowed:
    named = np.zeros(size, np.bool_)
    named[list(tokens)] = True
    return named

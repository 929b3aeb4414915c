"""Compiled grammars of one process: a bounded number, each compiled once, by the first requesting thread."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError
from serving.grammar.guidance import Compile, GuidanceRoute, PythonRoute, RawMatcher
from serving.grammar.text import complaint, guidance_text, is_limit
from serving.grammar.vocabulary import Vocabulary
from serving.values.sequence import Grammar

MOST_COMPILED = 64
_TRIED = 6
"""Steps of an output that are tried."""


class Grammars:
    """Compiled grammars over one vocabulary. Every method may be called by any thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], route: GuidanceRoute | None = None) -> None:
        """
        Args:
            vocabulary: gives it, when the first grammar comes; may take a second.
            route: how llguidance is called; None = by its Python classes.
        """
        self._make_vocabulary = vocabulary
        self._route: GuidanceRoute = route or PythonRoute()
        self._lock = Lock()
        self._first_use = Lock()
        self._known: OrderedDict[Grammar, Future[RawMatcher]] = OrderedDict()
        self._ahead: ThreadPoolExecutor | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        return self._basis[0]

    @property
    def step_functions(self) -> Sequence[int]:
        """C functions for these matchers; see `GuidanceRoute`."""
        return self._route.step_functions

    def fresh(self, grammar: Grammar) -> RawMatcher:
        """A new matcher of an empty output, owned by the caller.

        Raises: GrammarError.
        Effects: compiles the grammar, unless it is known.
        """
        with self._lock:
            found = self._known.get(grammar)
            mine = found is None
            if found is None:
                found = self._known[grammar] = Future()
                while len(self._known) > MOST_COMPILED:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(grammar)
        if mine:
            try:
                found.set_result(self._compile(grammar))
            except BaseException as error:
                found.set_exception(error)
        compiled = found.result()
        with self._lock:
            return compiled.deep_copy()

    def expect(self, grammar: Grammar) -> None:
        """Compile a grammar in another thread, because it is going to be needed. Errors show when it is."""
        with self._lock:
            if grammar in self._known:
                return
            if self._ahead is None:
                self._ahead = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._ahead.submit(self.fresh, grammar)

    @property
    def _basis(self) -> tuple[Vocabulary, Compile]:
        with self._first_use:
            return self._made

    @cached_property
    def _made(self) -> tuple[Vocabulary, Compile]:
        vocabulary = self._make_vocabulary()
        return vocabulary, self._route(vocabulary)

    def _compile(self, grammar: Grammar) -> RawMatcher:
        vocabulary, compile_text = self._basis
        matcher = compile_text(guidance_text(grammar))
        words = np.zeros(-(-(vocabulary.size + 1) // 32), np.uint32)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(
                words.ctypes.data, words.nbytes
            )  # the common prefix of all outputs is computed once
        if matcher.is_error():
            raise GrammarError(complaint(matcher.get_error()))
        if not words.any():
            raise GrammarError("no token of this model's vocabulary can begin such an output")
        _try(matcher.deep_copy(), words, vocabulary.size)
        return matcher


def _try(matcher: RawMatcher, words: NDArray[np.uint32], size: int) -> None:
    """Follow one output a little: limits of llguidance are often met behind the first token.

    Args:
        words: the first mask.
    Raises: GrammarError.
    """
    for _ in range(_TRIED):
        forced = matcher.compute_ff_tokens()
        open_bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:size])
        if not forced and not len(open_bits):
            return
        for token in forced or [int(open_bits[0])]:
            matcher.consume_token(token)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            words_of_it = complaint(matcher.get_error())
            if is_limit(words_of_it):
                raise GrammarError(words_of_it)
            return

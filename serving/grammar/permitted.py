"""Tokens that a request allows or forbids by id: a mask that is combined with that of its grammar."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from serving.grammar.matcher import Allowed
from serving.values.sequence import SamplingParams


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

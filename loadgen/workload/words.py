"""Prompts of an exact number of tokens without a tokenizer call for each: words that are one token in any context.

`calibrate.calibrate` finds the words; here they are only strung together, which costs about a microsecond for ten.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

import numpy as np

from loadgen.errors import UsageError
from loadgen.plan import Prompt

TOKENS_PER_WORD = 1.3
"""Tokens of an English word without a tokenizer: the usual rule of thumb of 3/4 word a token."""


class PromptKind(StrEnum):
    """Material of prompts; the names are those of `--prompt-kind`."""

    TEXT = "text"
    IDS = "ids"


@dataclass(frozen=True)
class Words:
    """The `WordSource` of a run; `ports.WordSource` states the properties of its texts.

    Attributes:
        vocabulary: words that are one token each, including their leading space.
        token_ids: token numbers that may be sent instead of words; number i belongs to word i, unless the user gave
            only the size of a vocabulary. None if unknown.
        kind: whether `prompt` returns text or token numbers.
        overhead_tokens: see `WordSource`.
        tokens_per_word: 1 if a tokenizer confirmed it, else an estimate.
        salt: changes every text and no other property; for `--cache-bust`.
    """

    vocabulary: tuple[str, ...]
    token_ids: Sequence[int] | None = None
    kind: PromptKind = PromptKind.TEXT
    overhead_tokens: int = 0
    tokens_per_word: float = 1.0
    salt: str = ""

    @property
    def size(self) -> int:
        """How many different words, or token numbers if prompts are made of those."""
        return len(self._known_ids()) if self.kind is PromptKind.IDS else len(self.vocabulary)

    @property
    def exact(self) -> bool:
        """Whether lengths are certain; token ids are their own count."""
        return self.kind is PromptKind.IDS or self.tokens_per_word == 1

    def text(self, seed: int, n_tokens: int) -> str:
        """See `WordSource`. Without a tokenizer: `n_tokens / tokens_per_word` words, at least one if any token."""
        return self.spell(self._draw(seed, self._words_for(n_tokens), len(self.vocabulary)))

    def ids(self, seed: int, n_tokens: int) -> list[int]:
        """See `WordSource`.

        Raises: UsageError if no token numbers are known.
        """
        return self.spell_ids(self._draw(seed, n_tokens, len(self._known_ids())))

    def spell(self, numbers: Sequence[int]) -> str:
        vocabulary = self.vocabulary
        return "".join([vocabulary[number] for number in numbers])

    def spell_ids(self, numbers: Sequence[int]) -> list[int]:
        """See `WordSource`.

        Raises: UsageError if no token numbers are known.
        """
        known = self._known_ids()
        return [known[number] for number in numbers]

    def prompt(self, *pieces: tuple[int, int]) -> Prompt:
        """See `WordSource`.

        Raises: UsageError if token ids are required and none are known.
        """
        if self.kind is PromptKind.IDS:
            return [number for seed, n_tokens in pieces for number in self.ids(seed, n_tokens)]
        return "".join([self.text(seed, n_tokens) for seed, n_tokens in pieces])

    def _words_for(self, n_tokens: int) -> int:
        return math.ceil(n_tokens / self.tokens_per_word)

    def _known_ids(self) -> Sequence[int]:
        """Token numbers. Raises: UsageError without any."""
        if self.token_ids is None:
            raise UsageError("token numbers are not known: use --tokenizer server or a tokenizer.json, or --vocab-size")
        return self.token_ids

    def _draw(self, seed: int, count: int, below: int) -> list[int]:
        """Numbers below `below` that depend on salt and seed only; fewer of them are the beginning of more."""
        key = blake2b(f"{seed}:{self.salt}".encode(), digest_size=16).digest()
        drawn: list[int] = (
            np.random.Generator(np.random.PCG64(int.from_bytes(key, "little"))).integers(0, below, count).tolist()
        )
        return drawn


def ordinary_ids(vocabulary_size: int) -> range:
    """Token numbers that are safe to send when only the size of the vocabulary is known.

    Leaves out both ends, where tokenizers keep special tokens and single bytes: an eighth, at most 256, below; a 32nd
    above (Llama 3, Qwen 3 and DeepSeek-V3 keep theirs in the last 1, 0.5 and 1 %, padding included).

    Raises: UsageError below 64.
    """
    if vocabulary_size < 64:
        raise UsageError(f"--vocab-size {vocabulary_size} is too small to keep clear of special tokens; use 64 or more")
    return range(min(256, vocabulary_size // 8), vocabulary_size - max(1, vocabulary_size // 32))

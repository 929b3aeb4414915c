"""Interfaces between the parts of a workload: conversations, a way to count tokens, a source of text.

No implementation may use a global generator or Python's `hash()`, which differs from process to process: the same seed
gives the same prompts everywhere.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from loadgen.plan import Conversation, Prompt


class Workload(Protocol):
    """A source of conversations. Implementations are frozen dataclasses, so that one may be used again and again."""

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """Conversations one after another, lazily.

        Endless for synthetic workloads; a data set ends where its file does (see `cycle.Cycled`). `arrival_s` is set,
        and ascends, where the data has times of its own.

        Args:
            rng: source of all randomness (lengths, order, seeds of texts); equal states give equal
                conversations.
        Raises: TraceFormatError, UsageError while iterating, for files that cannot be read.
        Effects: advances `rng`; may read files.
        """
        ...


class TokenCounter(Protocol):
    """The tokenizer of the model under test, as far as prompts of exact length need it.

    Counts are those that the completions endpoint would report for the text: tokens that the tokenizer puts around any
    text (such as a begin-of-text token) are included. Implemented by a local `tokenizer.json` (`local_tokenizer`) and
    by the server's `/tokenize`.
    """

    def count(self, text: str) -> int:
        """Tokens of a text (never empty) as a prompt.

        Raises: ServerError if a request to the server's tokenizer fails.
        """
        ...

    def pieces(self, text: str) -> list[str] | None:
        """The tokens' texts in order, one for each of `count`; None if this counter does not report them.

        A space at a token's beginning may be written as the tokenizer's vocabulary has it ("Ġthe", "▁the", " the").

        Raises: ServerError as `count`.
        """
        ...

    def ids(self, text: str) -> list[int] | None:
        """The tokens' numbers in order, one for each of `count`; None if this counter does not report them.

        Raises: ServerError as `count`.
        """
        ...


class WordSource(Protocol):
    """Text with a given number of tokens, made from words that are one token each in any context.

    A text depends only on (salt of the source, seed, length), and the shorter of two texts with one seed is a prefix of
    the longer. Texts can be written one after another: the tokens of `text(a, 5) + text(b, 7)` are twelve, and the
    first five are those of `text(a, 5)`.
    """

    @property
    def size(self) -> int:
        """Number of distinct words; `spell` takes numbers below it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether a tokenizer confirmed one token a word; if not, `Turn.input_tokens` must stay None."""
        ...

    @property
    def overhead_tokens(self) -> int:
        """Tokens that the tokenizer adds to every prompt (begin-of-text).

        A prompt of n tokens as the server counts them is `n - overhead_tokens` tokens of text. 0 if unknown, for
        token ids (sent as they are) and for chat (whose template adds its own, which no length here includes).
        """
        ...

    def text(self, seed: int, n_tokens: int) -> str:
        """A text of `n_tokens` tokens (>= 0), equal for equal seeds (0 <= seed < 2**64)."""
        ...

    def ids(self, seed: int, n_tokens: int) -> list[int]:
        """The same as token numbers.

        Raises: UsageError if neither the tokenizer nor the user provided the numbers.
        """
        ...

    def spell(self, numbers: Sequence[int]) -> str:
        """The text whose i-th token is word `numbers[i]` (each in [0, size)); for callers that must choose tokens."""
        ...

    def spell_ids(self, numbers: Sequence[int]) -> list[int]:
        """The same as token numbers; different words have different numbers.

        Raises: UsageError as `ids`.
        """
        ...

    def prompt(self, *pieces: tuple[int, int]) -> Prompt:
        """Pieces (seed, n_tokens) joined in order, as text or as token ids, as configured.

        Raises: UsageError as `ids`.
        """
        ...

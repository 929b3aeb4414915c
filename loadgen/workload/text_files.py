"""Prompts cut out of text files at random places.

Files are read and tokenised once; a prompt is then a sequence of whole words, filled up with one-token words to the
given length, so the tokenizer is not called per prompt. White space is reduced to single spaces, which is what lets
tokens be counted word by word; a few prompts are counted whole to prove that the sums hold, and if they do not, lengths
are called estimates.
"""

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError
from loadgen.regular_file import check_regular
from loadgen.workload.calibrate import with_plain_spaces
from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import TokenCounter
from loadgen.workload.source import Asker, Question, draw_seed
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words

MOST_WORDS = 400_000
"""Kept of all files together: some 2 MB, tokenised in about a second; more would only delay the start."""
_MOST_CHARACTERS = 20 * MOST_WORDS
"""Read of each file, so that a huge one does not fill the memory."""
_WORDS_PER_CALL = 2_000
"""Words a tokenizer call, so that a server's limits on requests are not met."""
_SAMPLES = 3
_SAMPLE_TOKENS = 200


@dataclass(frozen=True)
class TextFiles:
    """Source of prompts from one or more text files (UTF-8), treated as one long text that repeats.

    Attributes:
        paths: in order. words: fills up prompts, and states how lengths are counted. input_tokens: of each prompt.
        counter: the model's tokenizer; None = lengths are estimates. most_words: kept of all files together.
    """

    paths: tuple[Path, ...]
    words: Words
    input_tokens: Lengths
    counter: TokenCounter | None = None
    most_words: int = MOST_WORDS

    def __post_init__(self) -> None:
        """Raises: UsageError if token ids are required, which these texts do not have."""
        if self.words.kind is PromptKind.IDS:
            raise UsageError("text files need --prompt-kind text")

    @property
    def least_tokens(self) -> int:
        return self.input_tokens.least

    def open(self, rng: np.random.Generator) -> Asker:
        """See `Source`.

        Raises: UsageError if a file cannot be read, or if there is not one word in all of them.
        """
        texts = self._read()
        ends, exact = _measured(texts, self.counter)
        return _TextAsker(self, texts, ends, exact and self.words.exact, rng)

    def _read(self) -> list[str]:
        """The words of all files, each after a space."""
        found: list[str] = []
        for path in self.paths:
            try:
                check_regular(path)
                with path.open(encoding="utf-8") as file:
                    text = file.read(_MOST_CHARACTERS)
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"cannot read {path} as text: {getattr(error, 'strerror', None) or error}") from None
            found += [f" {word}" for word in text.split()[: self.most_words - len(found)]]
        if not found:
            raise UsageError(f"no words in {', '.join(map(str, self.paths)) or 'no file'}")
        return found


class _TextAsker:
    """`Asker` of `TextFiles`, read and measured."""

    def __init__(
        self, settings: TextFiles, texts: list[str], ends: NDArray[np.float64], exact: bool, rng: np.random.Generator
    ) -> None:
        """`ends`: tokens up to and with each word, shape [words] float64 (estimates need not be whole)."""
        self._settings = settings
        self._texts = texts
        self._ends = ends.tolist()
        self._exact = exact and self._proven(rng)

    def first(self, rng: np.random.Generator, limit: int | None) -> Question:
        overhead = self._settings.words.overhead_tokens
        asked = self._settings.input_tokens.asked(rng)
        n_tokens = max(self._settings.input_tokens.fitted(asked, limit), overhead + 1)
        return Question(self._cut(rng, n_tokens - overhead), n_tokens, self._exact, asked)

    def later(self, rng: np.random.Generator) -> Question:
        asked = self._settings.input_tokens.asked(rng)
        n_tokens = self._settings.input_tokens.fitted(asked)
        return Question(self._cut(rng, n_tokens), n_tokens, self._exact, asked)

    def _cut(self, rng: np.random.Generator, n_tokens: int) -> str:
        """Whole words from a random position on, and as many one-token words as are missing after them."""
        start, fill_seed = int(rng.integers(len(self._texts))), draw_seed(rng)
        parts: list[str] = []
        missing = float(n_tokens)
        while missing > 0:
            before = self._ends[start - 1] if start else 0.0
            end = bisect_right(self._ends, before + missing)
            parts += self._texts[start:end]
            missing -= (self._ends[end - 1] - before) if end > start else 0.0
            if end < len(self._texts):
                break
            start = 0
        filled = round(missing)
        return "".join(parts) + (self._settings.words.text(fill_seed, filled) if filled or not parts else "")

    def _proven(self, rng: np.random.Generator) -> bool:
        """Whether prompts of medium length have as many tokens as the sums predict."""
        counter, words = self._settings.counter, self._settings.words
        if counter is None:
            return False
        added = counter.count(words.text(0, 1)) - 1  # by the tokenizer, to any text
        cuts = [self._cut(rng, _SAMPLE_TOKENS) for _ in range(_SAMPLES)]
        return all(counter.count(cut) == _SAMPLE_TOKENS + added for cut in cuts)


def _measured(texts: list[str], counter: TokenCounter | None) -> tuple[NDArray[np.float64], bool]:
    """Tokens up to and with each word, and whether every word's own were seen.

    Effects: one call of the tokenizer for some thousand words.
    """
    if counter is None:
        return np.cumsum(np.full(len(texts), TOKENS_PER_WORD)), False
    costs: list[float] = []
    exact = True
    for first in range(0, len(texts), _WORDS_PER_CALL):
        some = texts[first : first + _WORDS_PER_CALL]
        seen = _tokens_of_each(some, counter)
        exact = exact and seen is not None
        costs += seen if seen is not None else [counter.count("".join(some)) / len(some)] * len(some)
    return np.cumsum(np.array(costs, dtype=np.float64)), exact


def _tokens_of_each(texts: list[str], counter: TokenCounter) -> list[int] | None:
    """Tokens of each word; None if tokens cannot be assigned to words."""
    pieces = counter.pieces("".join(texts))
    if pieces is None:
        return None
    begins = [index for index, piece in enumerate(with_plain_spaces(pieces)) if piece.startswith(" ")]
    # Some tokenizers put a space of their own before the first word.
    if len(begins) == len(texts) + 1:
        del begins[0]
    if len(begins) != len(texts):
        return None
    return [end - begin for begin, end in itertools.pairwise([*begins, len(pieces)])]

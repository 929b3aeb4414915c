"""Find words that are one token each for a given tokenizer, and verify them on samples.

Done once a run: two to ten calls of the tokenizer if it can show its tokens, one call a word if it only counts.

    common English words, each behind a space
        -> those that are one token so        -> strings of them counted: as many tokens as words?
    if they are too few (byte tokenizers): the same with single letters and digits without spaces
    if neither is proven: words at the measured rate of tokens a word, and lengths are called estimates
"""

import random
import string
from collections.abc import Iterable, Sequence

from loadgen.workload.english_words import ENGLISH_WORDS
from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words, ordinary_ids

FEWEST_WORDS = 32
"""With fewer words prompts would repeat themselves so much that they resemble a shared prefix."""
ENOUGH_WORDS = 256
"""Where each word costs a call, so many are enough."""
_SAMPLES = 3
_SPACED = tuple(f" {word}" for word in ENGLISH_WORDS)
_CHARACTERS = tuple(string.ascii_lowercase + string.ascii_uppercase + string.digits)
_SPACE_MARKS = {"Ġ": " ", "▁": " "}
"""How byte-level (GPT-2) and SentencePiece vocabularies write a space."""


def calibrate(
    counter: TokenCounter | None,
    *,
    kind: PromptKind = PromptKind.TEXT,
    chat: bool = False,
    vocabulary_size: int | None = None,
    salt: str = "",
) -> Words:
    """The words for a run.

    Args:
        counter: the model's tokenizer; None = no tokenizer is available, and lengths are estimates.
        kind: what prompts are made of. chat: prompts pass through a chat template, so the begin-of-text token belongs
        to the template and is not counted. vocabulary_size: for token ids; None = the numbers of the words themselves.
        salt: see `Words.salt`.
    Raises: ServerError if a request to the server's tokenizer fails; UsageError for a vocabulary that is too small.
    """
    token_ids = None if vocabulary_size is None else ordinary_ids(vocabulary_size)
    if counter is None:
        return Words(_SPACED, token_ids, kind, tokens_per_word=TOKENS_PER_WORD, salt=salt)
    for candidates in (_SPACED, _CHARACTERS):
        kept = _single_tokens(counter, candidates)
        overhead = _proven_overhead(counter, kept) if len(kept) >= FEWEST_WORDS else None
        if overhead is not None:
            known = token_ids if token_ids is not None else _ids_of(counter, kept, overhead)
            counted = 0 if chat or kind is PromptKind.IDS else overhead
            return Words(kept, known, kind, overhead_tokens=counted, salt=salt)
    rate = counter.count("".join(_SPACED)) / len(_SPACED)
    # Never 1 exactly: that would claim the proof that failed.
    return Words(_SPACED, token_ids, kind, tokens_per_word=rate if rate != 1 else 1 + 1e-9, salt=salt)


def with_plain_spaces(pieces: Iterable[str]) -> list[str]:
    """Token texts with the vocabulary's mark of a space written as a space."""
    return [_SPACE_MARKS.get(piece[:1], piece[:1]) + piece[1:] for piece in pieces]


def _single_tokens(counter: TokenCounter, candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Candidates that are one token, as far as one call can show."""
    pieces = counter.pieces("".join(candidates)) if candidates is _SPACED else _pieces_of_each(counter, candidates)
    if pieces is not None:
        shown = frozenset(with_plain_spaces(pieces))
        return tuple(word for word in candidates if word in shown)
    # One word shows how many tokens are added to any text, if it is one token itself; `_proven_overhead` finds out.
    least = min(counter.count(word) for word in candidates[:8])
    kept = []
    for word in candidates:
        if counter.count(word) == least:
            kept.append(word)
        if len(kept) == ENOUGH_WORDS:
            break
    return tuple(kept)


def _pieces_of_each(counter: TokenCounter, characters: Sequence[str]) -> list[str] | None:
    """Tokens of the characters, parted by spaces so that they do not join."""
    return counter.pieces(" ".join(characters))


def _proven_overhead(counter: TokenCounter, words: tuple[str, ...]) -> int | None:
    """Tokens that are added to any text, if every sample of words has that many more tokens than words; else None."""
    shuffled = random.Random(0)
    overheads = {counter.count(words[0]) - 1, counter.count(words[0] + words[1]) - 2}
    for _ in range(_SAMPLES):
        sample = [*shuffled.sample(words, len(words)), *shuffled.choices(words, k=len(words))]
        overheads.add(counter.count("".join(sample)) - len(sample))
    overhead = min(overheads)
    return overhead if len(overheads) == 1 and overhead >= 0 else None


def _ids_of(counter: TokenCounter, words: tuple[str, ...], overhead: int) -> tuple[int, ...] | None:
    """The words' token numbers; None if the counter does not report them.

    The tokenizer may add tokens in front of or behind the text; the two orders of the words have it in common.
    """
    forward, backward = counter.ids("".join(words)), counter.ids("".join(reversed(words)))
    if forward is None or backward is None or len(forward) != len(words) + overhead:
        return None
    before = 0
    while before < overhead and forward[before] == backward[before]:
        before += 1
    return tuple(forward[before : before + len(words)])

"""An endless stream of training windows: stories, chats and book passages, mixed by training progress.

Books teach grammar and long context early; the share of simple stories and chats grows, because the last training data
determines the model's style.
"""

from collections.abc import Iterator
from random import Random

import torch
from chats import chat, index_stories, render, swap_names
from corpus import Corpus
from tokenizers import Tokenizer
from torch import Tensor

CHAT_SHARE = 0.45  # of story documents
NAME_SWAP_SHARE = 0.7  # of story readings


def book_share(progress: float) -> float:
    """Share of tokens from books, at `progress` in [0, 1]."""
    return 0.35 - 0.30 * min(1.0, progress / 0.55)


def window_length(progress: float, rng: Random) -> int:
    """Tokens in a window. Short windows first: they cost less, and a story has about 220 tokens."""
    if progress < 0.35:
        return 256
    if progress < 0.65:
        return 512
    return rng.choices((512, 1024, 2048), weights=(70, 20, 10))[0]


def batch_tokens(progress: float) -> int:
    """Tokens per step. Early in training a step of half the size is as effective, so there are twice as many."""
    return 2048 if progress < 0.6 else 4096


def shuffled_forever(count: int, rng: Random) -> Iterator[int]:
    """Indices below `count`, in a new random order at every pass."""
    while True:
        order = list(range(count))
        rng.shuffle(order)
        yield from order


class Stream:
    """Windows of tokens. Documents are concatenated, so a window may start inside one.

    Args:
        seed: determines all random choices; a resumed run passes another one, so as not to repeat its first part.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, seed: int) -> None:
        self.rng = Random(seed)
        self.stories = index_stories(corpus.stories)
        self.books = corpus.books
        self.tokenizer = tokenizer
        self.story_order = shuffled_forever(len(self.stories), self.rng)
        self.book_order = shuffled_forever(len(self.books), self.rng)
        self.drawn = {"stories": 0, "chats": 0, "books": 0}
        self._credit = 0.0  # tokens still due to books, so that shares apply to tokens and not to documents
        self._left: list[int] = []

    def _document(self, long: bool) -> tuple[str, str]:
        """The next story document as (kind, text)."""
        rng = self.rng

        def story():  # noqa: ANN202
            found = self.stories[next(self.story_order)]
            return swap_names(found, rng) if rng.random() < NAME_SWAP_SHARE else found

        if rng.random() >= CHAT_SHARE:
            return "stories", f"<|begin|>{story().text}<|end|>"
        turns = []
        for number in range(rng.randint(2, 5) if long and rng.random() < 0.5 else 1):
            more = chat(story(), story(), rng)
            turns += [t for t in more if number == 0 or t[0] != "system"]
        return "chats", "<|begin|>" + render(turns)

    def batch(self, progress: float) -> Tensor:
        """int64 [windows, length + 2], `batch_tokens` of them in total. Effects: advances the stream."""
        length = window_length(progress, self.rng)
        windows = batch_tokens(progress) // length
        while len(self._left) < windows * length + 2:
            if self._credit > 0:
                kind, text = "books", f"<|begin|>{self.books[next(self.book_order)]}<|end|>"
            else:
                kind, text = self._document(long=length > 512)
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            self.drawn[kind] += len(ids)
            self._credit += book_share(progress) * len(ids) - (len(ids) if kind == "books" else 0)
            self._left += ids
        tokens = torch.tensor(self._left[: windows * length + 2])
        self._left = self._left[windows * length :]
        return tokens.unfold(0, length + 2, length)


def held_out_windows(tokenizer: Tokenizer, texts: list[str], length: int, count: int) -> Tensor:
    """int64 [count, length + 2] of whole concatenated documents, for quick validation during training."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer.encode(f"<|begin|>{text}<|end|>", add_special_tokens=False).ids
    return torch.tensor(ids).unfold(0, length + 2, length)[:count]

"""Vocabulary for grammars: the bytes of every token, and which tokens are not text.

Every added token counts as special, even if its file does not mark it: an unmarked control token would otherwise be
text, and could be sampled inside a JSON string. One extra token represents every stop token: it is allowed where an
output is complete. Requests define their stop tokens, so matchers substitute those for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

STOP = b"<|stop|>"
"""Name of the token that represents all stop tokens."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of one model.

    Args:
        tokens: bytes of each id; a special token's are its name. Empty = the id is never drawn.
        special: ids that are no text.
        encode: the model's own tokens of a text, special ones not known.
    """

    tokens: tuple[bytes, ...]
    special: frozenset[int]
    encode: Callable[[str], list[int]]

    @property
    def size(self) -> int:
        """Ids of the model; the stop token has the next one."""
        return len(self.tokens)

    @cached_property
    def names(self) -> list[bytes]:
        """Bytes of all ids, those of the stop token at the end. Ids without a token have a name that no text has."""
        return [*(own or b"<|none %d|>" % index for index, own in enumerate(self.tokens)), STOP]

    @cached_property
    def no_text(self) -> frozenset[int]:
        """Ids that no grammar may take for text."""
        return self.special | {self.size} | {index for index, own in enumerate(self.tokens) if not own}

    def canonical(self, text: str) -> list[int]:
        """Tokens of a text that a grammar forces: the model's own, or the longest ones where those spell another."""
        ids = self.encode(text)
        wanted = text.encode()
        if all(i < self.size and i not in self.no_text for i in ids):
            if b"".join([self.tokens[i] for i in ids]) == wanted:
                return ids
        return self._longest(wanted)

    def _longest(self, text: bytes) -> list[int]:
        ids: list[int] = []
        while text:
            size = next((n for n in range(min(len(text), self._reach), 0, -1) if text[:n] in self._by_bytes), 0)
            if not size:  # no token starts with it: the matcher detects the dead end
                break
            ids.append(self._by_bytes[text[:size]])
            text = text[size:]
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        texts = {own: index for index, own in enumerate(self.tokens) if index not in self.no_text}
        return dict(sorted(texts.items()))

    @cached_property
    def _reach(self) -> int:
        return max(map(len, self._by_bytes), default=0)


def guidance_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """The vocabulary in llguidance's form; may take a second for a large one."""
    return LLTokenizer(TokenizerWrapper(_Source(vocabulary)), n_vocab=vocabulary.size + 1)


class _Source:
    """A vocabulary with the attributes that `TokenizerWrapper` requires."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.size
        self.tokens = vocabulary.names
        self.special_token_ids = sorted(vocabulary.no_text)
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("texts only")  # so the wrapper learns that bytes which are no UTF-8 are not for us
        return self._vocabulary.canonical(text)

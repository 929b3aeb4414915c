"""Tokenizers of several kinds, small and real, for tests of prompt lengths."""

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from loadgen.workload.calibrate import ENGLISH_WORDS
from loadgen.workload.local_tokenizer import LocalTokenizer

_CORPUS = [" ".join(ENGLISH_WORDS[start:] + ENGLISH_WORDS[:start]) for start in range(0, 800, 40)]


class Bytes:
    """One token per byte."""

    def count(self, text: str) -> int:
        return len(text.encode())

    def pieces(self, text: str) -> list[str] | None:
        return list(text)

    def ids(self, text: str) -> list[int] | None:
        return list(text.encode())


class CountsOnly:
    """A server whose /tokenize returns only a count."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count = count
        self.calls = 0

    def pieces(self, text: str) -> list[str] | None:
        self.calls += 1
        return None

    def ids(self, text: str) -> list[int] | None:
        return None


class Joining(Bytes):
    """Words are one token, but a word that ends in "e" absorbs the next one."""

    def count(self, text: str) -> int:
        return len(self._tokens(text))

    def pieces(self, text: str) -> list[str] | None:
        return [f"Ġ{token}" for token in self._tokens(text)]

    def ids(self, text: str) -> list[int] | None:
        return None

    def _tokens(self, text: str) -> list[str]:
        tokens: list[str] = []
        for word in text.split():
            if tokens and tokens[-1].endswith("e") and "_" not in tokens[-1]:
                tokens[-1] += f"_{word}"
            else:
                tokens.append(word)
        return tokens


def byte_level_bpe(vocabulary_size: int = 2500, *, begin: bool = True, end: bool = False) -> LocalTokenizer:
    """See `raw_byte_level`."""
    return LocalTokenizer(raw_byte_level(vocabulary_size, begin=begin, end=end))


def raw_byte_level(vocabulary_size: int = 2500, *, begin: bool = True, end: bool = False) -> Tokenizer:
    """A tokenizer like GPT-2's, with a begin-of-text token and, optionally, an end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, vocabulary_size, pre_tokenizers.ByteLevel.alphabet())
    _add_specials(tokenizer, begin, end)
    return tokenizer


def metaspace_bpe(vocabulary_size: int = 2500) -> LocalTokenizer:
    """A tokenizer like SentencePiece's: it adds a space before the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<u>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    _train(tokenizer, vocabulary_size, list("abcdefghijklmnopqrstuvwxyz▁"))
    _add_specials(tokenizer, True, False)
    return LocalTokenizer(tokenizer)


def _train(tokenizer: Tokenizer, vocabulary_size: int, alphabet: list[str]) -> None:
    special = ["<s>", "</s>", "<u>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)


def _add_specials(tokenizer: Tokenizer, begin: bool, end: bool) -> None:
    template = f"{'<s> ' if begin else ''}$A{' </s>' if end else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 1)])

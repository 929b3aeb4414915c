"""Prompts have exactly the tokens asked for, by real tokenizers of every kind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.calibrate import ENOUGH_WORDS, FEWEST_WORDS, calibrate
from loadgen.workload.english_words import ENGLISH_WORDS
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words
from tests.loadgen.workload.counters import Bytes, CountsOnly, Joining, byte_level_bpe, metaspace_bpe

COUNTERS: dict[str, TokenCounter] = {
    "begin": byte_level_bpe(),
    "begin and end": byte_level_bpe(end=True),
    "nothing added": byte_level_bpe(begin=False),
    "small": byte_level_bpe(600),
    "sentencepiece": metaspace_bpe(),
    "bytes": Bytes(),
    "counts only": CountsOnly(byte_level_bpe().count),
    "counts bytes": CountsOnly(Bytes().count),
}
WORDS = {name: calibrate(counter) for name, counter in COUNTERS.items()}


def test_there_are_enough_words_and_none_twice() -> None:
    assert len(ENGLISH_WORDS) >= 600
    assert len(set(ENGLISH_WORDS)) == len(ENGLISH_WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in ENGLISH_WORDS)


@pytest.mark.parametrize("name", COUNTERS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**63), st.integers(1, 200), st.integers(1, 200))
def test_lengths_are_exact_and_add_up(name: str, seed: int, n: int, more: int) -> None:
    counter, words = COUNTERS[name], WORDS[name]
    assert words.exact
    assert words.size >= FEWEST_WORDS
    assert counter.count(words.text(seed, n)) == n + words.overhead_tokens
    assert counter.count(words.text(seed, n) + words.text(seed + 1, more)) == n + more + words.overhead_tokens


@pytest.mark.parametrize(
    ("name", "overhead"),
    [("begin", 1), ("begin and end", 2), ("nothing added", 0), ("sentencepiece", 1), ("bytes", 0), ("counts only", 1)],
)
def test_what_the_tokenizer_adds_is_known(name: str, overhead: int) -> None:
    assert WORDS[name].overhead_tokens == overhead


@pytest.mark.parametrize("name", ["begin", "begin and end", "nothing added", "sentencepiece", "bytes"])
def test_token_numbers_are_those_of_the_words(name: str) -> None:
    counter, words = COUNTERS[name], WORDS[name]
    whole = counter.ids(words.text(4, 30))
    assert whole is not None
    ids = words.ids(4, 30)
    assert any(whole[start : start + 30] == ids for start in range(words.overhead_tokens + 1))
    assert len(set(words.token_ids or ())) == words.size


def test_one_call_is_enough_where_tokens_are_shown() -> None:
    class Counting(LocalTokenizer):
        calls = 0

        def count(self, text: str) -> int:
            Counting.calls += 1
            return super().count(text)

    calibrate(Counting(byte_level_bpe()._tokenizer))
    assert Counting.calls < 10


def test_a_counter_without_tokens_is_asked_word_by_word_until_there_are_enough() -> None:
    words = WORDS["counts only"]
    assert words.size == ENOUGH_WORDS
    assert words.token_ids is None


def test_bytes_get_letters() -> None:
    assert all(len(word) == 1 for word in WORDS["bytes"].vocabulary)


def test_words_that_swallow_others_are_left_out_where_tokens_are_shown() -> None:
    words = calibrate(Joining())
    assert words.exact
    assert Joining().count(words.text(0, 1000)) == 1000


def test_words_that_do_not_keep_apart_make_lengths_estimates() -> None:
    counter = CountsOnly(Joining().count)
    words = calibrate(counter)
    assert not words.exact
    # About right all the same: the measured rate is used.
    assert words.tokens_per_word < 0.9
    assert counter.count(words.text(0, 1000)) == pytest.approx(1000, rel=0.05)


def test_nobody_to_ask() -> None:
    words = calibrate(None, salt="x")
    assert words == Words(tuple(f" {w}" for w in ENGLISH_WORDS), tokens_per_word=TOKENS_PER_WORD, salt="x")


def test_chat_and_ids_have_no_overhead_of_their_own() -> None:
    counter = COUNTERS["begin"]
    assert calibrate(counter, chat=True).overhead_tokens == 0
    ids = calibrate(counter, kind=PromptKind.IDS)
    assert (ids.overhead_tokens, ids.kind, ids.size) == (0, PromptKind.IDS, WORDS["begin"].size)


def test_a_vocabulary_size_gives_ids_without_a_tokenizer() -> None:
    words = calibrate(None, kind=PromptKind.IDS, vocabulary_size=3072)
    assert words.exact
    assert all(256 <= token < 2976 for token in words.ids(1, 500))
    assert calibrate(COUNTERS["begin"], kind=PromptKind.IDS, vocabulary_size=3072).size == 2720


def test_a_tiny_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="too small"):
        calibrate(None, kind=PromptKind.IDS, vocabulary_size=10)

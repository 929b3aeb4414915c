"""Prompts have exactly the requested tokens, by real tokenizers of every kind."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.calibrate import ENGLISH_WORDS, ENOUGH_WORDS, FEWEST_WORDS, calibrate
from loadgen.workload.local_tokenizer import LocalTokenizer, open_tokenizer
from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words, ordinary_ids
from tests.loadgen.workload.counters import Bytes, CountsOnly, Joining, byte_level_bpe, metaspace_bpe, raw_byte_level

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


def test_calibration_asks_as_little_as_it_can() -> None:
    class Counting(LocalTokenizer):
        calls = 0

        def count(self, text: str) -> int:
            Counting.calls += 1
            return super().count(text)

    calibrate(Counting(raw_byte_level()))
    assert Counting.calls < 10
    words = WORDS["counts only"]
    assert words.size == ENOUGH_WORDS
    assert words.token_ids is None
    assert all(len(word) == 1 for word in WORDS["bytes"].vocabulary)


def test_words_that_swallow_others_are_left_out_or_lengths_are_estimates() -> None:
    words = calibrate(Joining())
    assert words.exact
    assert Joining().count(words.text(0, 1000)) == 1000

    counter = CountsOnly(Joining().count)
    words = calibrate(counter)
    assert not words.exact
    # About right all the same: the measured rate is used.
    assert words.tokens_per_word < 0.9
    assert counter.count(words.text(0, 1000)) == pytest.approx(1000, rel=0.05)


def test_calibration_without_a_tokenizer() -> None:
    words = calibrate(None, salt="x")
    assert words == Words(tuple(f" {w}" for w in ENGLISH_WORDS), tokens_per_word=TOKENS_PER_WORD, salt="x")
    words = calibrate(None, kind=PromptKind.IDS, vocabulary_size=3072)
    assert words.exact
    assert all(256 <= token < 2976 for token in words.ids(1, 500))
    assert calibrate(COUNTERS["begin"], kind=PromptKind.IDS, vocabulary_size=3072).size == 2720
    with pytest.raises(UsageError, match="too small"):
        calibrate(None, kind=PromptKind.IDS, vocabulary_size=10)


def test_kinds_of_words() -> None:
    counter = COUNTERS["begin"]
    assert calibrate(counter, chat=True).overhead_tokens == 0
    ids = calibrate(counter, kind=PromptKind.IDS)
    assert (ids.overhead_tokens, ids.kind, ids.size) == (0, PromptKind.IDS, WORDS["begin"].size)
    assert len(ENGLISH_WORDS) >= 600
    assert len(set(ENGLISH_WORDS)) == len(ENGLISH_WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in ENGLISH_WORDS)


PLAIN = Words((" one", " two", " three", " four", " five"), token_ids=(11, 12, 13, 14, 15))
SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS, st.integers(0, 300), st.integers(0, 300))
def test_the_shorter_text_is_the_beginning_of_the_longer(seed: int, n: int, more: int) -> None:
    assert PLAIN.text(seed, n + more).startswith(PLAIN.text(seed, n))
    assert PLAIN.ids(seed, n + more)[:n] == PLAIN.ids(seed, n)
    assert len(PLAIN.text(seed, n).split()) == n


@given(SEEDS, st.integers(0, 50))
def test_text_and_ids_say_the_same(seed: int, n: int) -> None:
    numbers = [PLAIN.vocabulary.index(f" {word}") for word in PLAIN.text(seed, n).split()]
    assert PLAIN.spell(numbers) == PLAIN.text(seed, n)
    assert PLAIN.spell_ids(numbers) == PLAIN.ids(seed, n)


def test_seeds_and_salts_change_the_text_of_evenly_used_words() -> None:
    salted = Words(PLAIN.vocabulary, salt="pepper")
    texts = {PLAIN.text(1, 40), PLAIN.text(2, 40), salted.text(1, 40), salted.text(2, 40), PLAIN.text(1, 41)}
    assert len(texts) == 5
    assert PLAIN.text(1, 40) == Words(PLAIN.vocabulary).text(1, 40)
    drawn = PLAIN.ids(3, 10_000)
    assert [drawn.count(token) for token in PLAIN.token_ids or ()] == pytest.approx([2000] * 5, rel=0.1)


def test_kinds_and_estimates() -> None:
    assert PLAIN.prompt((1, 3), (2, 4)) == PLAIN.text(1, 3) + PLAIN.text(2, 4)
    ids = Words(PLAIN.vocabulary, token_ids=range(100, 900), kind=PromptKind.IDS)
    prompt = ids.prompt((1, 3), (2, 4))
    assert prompt == ids.ids(1, 3) + ids.ids(2, 4)
    assert len(prompt) == 7
    assert (PLAIN.size, ids.size) == (5, 800)
    guessed = Words(PLAIN.vocabulary, tokens_per_word=TOKENS_PER_WORD)
    assert not guessed.exact
    assert len(guessed.text(0, 130).split()) == 100
    assert len(guessed.text(0, 1).split()) == 1
    assert PLAIN.exact
    assert Words((), range(9), PromptKind.IDS, tokens_per_word=TOKENS_PER_WORD).exact


def test_unknown_numbers_and_tiny_vocabularies_are_refused() -> None:
    nothing_known = Words(PLAIN.vocabulary, kind=PromptKind.IDS)
    for use in (
        lambda: nothing_known.ids(0, 1),
        lambda: nothing_known.spell_ids([0]),
        lambda: nothing_known.prompt((0, 1)),
    ):
        with pytest.raises(UsageError, match="--vocab-size"):
            use()

    with pytest.raises(UsageError, match="too small"):
        ordinary_ids(63)


@pytest.mark.parametrize(
    ("size", "lowest", "behind"), [(128_256, 256, 124_248), (129_280, 256, 125_240), (3072, 256, 2976), (64, 8, 62)]
)
def test_ordinary_ids_keep_clear_of_both_ends(size: int, lowest: int, behind: int) -> None:
    assert ordinary_ids(size) == range(lowest, behind)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a tokenizer that requires truncation and padding."""
    tokenizer = raw_byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_file_and_folder_are_the_same_and_are_neither_cut_nor_filled(folder: Path) -> None:
    for where in (folder, folder / "tokenizer.json"):
        counter = open_tokenizer(where)
        assert counter.count(" the cat the cat the cat") == 7
        assert counter.pieces(" the cat") == ["<s>", "Ġthe", "Ġcat"]
        ids = counter.ids(" the cat")
        assert ids is not None
        assert (len(ids), ids[0]) == (3, 0)


def test_no_tokenizer_there(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="no tokenizer at"):
            open_tokenizer(where)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        open_tokenizer(tmp_path)


def test_a_missing_package_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="package `tokenizers`"):
        open_tokenizer(folder)


def test_the_package_is_imported_only_when_one_is_opened() -> None:
    code = (
        "import sys, loadgen.workload.local_tokenizer, loadgen.workload.plan_jobs, loadgen.workload.text_files;"
        "print('tokenizers' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

"""Texts depend on salt, seed and length only, and can be cut and joined."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.words import TOKENS_PER_WORD, PromptKind, Words, ordinary_ids

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


def test_seeds_and_salts_change_the_text() -> None:
    salted = Words(PLAIN.vocabulary, salt="pepper")
    texts = {PLAIN.text(1, 40), PLAIN.text(2, 40), salted.text(1, 40), salted.text(2, 40), PLAIN.text(1, 41)}
    assert len(texts) == 5
    assert PLAIN.text(1, 40) == Words(PLAIN.vocabulary).text(1, 40)


def test_all_words_are_used_about_equally() -> None:
    drawn = PLAIN.ids(3, 10_000)
    assert [drawn.count(token) for token in PLAIN.token_ids or ()] == pytest.approx([2000] * 5, rel=0.1)


def test_another_process_writes_the_same() -> None:
    code = "from loadgen.workload.words import Words; print(Words((' a', ' b')).text(9, 30), end='')"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True
    )
    assert other.stdout == Words((" a", " b")).text(9, 30)


def test_prompts_are_of_the_kind_wanted() -> None:
    assert PLAIN.prompt((1, 3), (2, 4)) == PLAIN.text(1, 3) + PLAIN.text(2, 4)
    ids = Words(PLAIN.vocabulary, token_ids=range(100, 900), kind=PromptKind.IDS)
    prompt = ids.prompt((1, 3), (2, 4))
    assert prompt == ids.ids(1, 3) + ids.ids(2, 4)
    assert len(prompt) == 7
    assert (PLAIN.size, ids.size) == (5, 800)


def test_without_a_tokenizer_lengths_are_estimates() -> None:
    guessed = Words(PLAIN.vocabulary, tokens_per_word=TOKENS_PER_WORD)
    assert not guessed.exact
    assert len(guessed.text(0, 130).split()) == 100
    assert len(guessed.text(0, 1).split()) == 1
    assert PLAIN.exact
    assert Words((), range(9), PromptKind.IDS, tokens_per_word=TOKENS_PER_WORD).exact


def test_unknown_token_numbers_are_refused() -> None:
    nothing_known = Words(PLAIN.vocabulary, kind=PromptKind.IDS)
    for use in (
        lambda: nothing_known.ids(0, 1),
        lambda: nothing_known.spell_ids([0]),
        lambda: nothing_known.prompt((0, 1)),
    ):
        with pytest.raises(UsageError, match="--vocab-size"):
            use()


@pytest.mark.parametrize(
    ("size", "lowest", "behind"), [(128_256, 256, 124_248), (129_280, 256, 125_240), (3072, 256, 2976), (64, 8, 62)]
)
def test_ordinary_ids_keep_clear_of_both_ends(size: int, lowest: int, behind: int) -> None:
    assert ordinary_ids(size) == range(lowest, behind)


def test_a_vocabulary_must_have_a_middle() -> None:
    with pytest.raises(UsageError, match="too small"):
        ordinary_ids(63)

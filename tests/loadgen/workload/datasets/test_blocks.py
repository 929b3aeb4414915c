"""Prompts from hash ids: equal ids give equal tokens, unequal ones differ, for any tokenizer and lengths."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.calibrate import calibrate
from loadgen.workload.datasets import BlockPrompts
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import PromptKind, Words, ordinary_ids
from tests.loadgen.workload.counters import Bytes, byte_level_bpe

_BPE = byte_level_bpe()
_WORDS = calibrate(_BPE)
_BLOCK = 16

ids_lists = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 10**6), st.integers(0, 2**63 - 1)), max_size=5)


def _tokens(prompt: object) -> list[int]:
    assert isinstance(prompt, str)
    return _BPE.ids(prompt) or []


def _shared(first: list[int], second: list[int]) -> int:
    """Tokens in the common prefix of two prompts."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(ids_lists, ids_lists, st.integers(1, 80), st.integers(1, 80))
def test_prompts_share_exactly_the_blocks_whose_ids_they_share(
    first: list[int], second: list[int], n_first: int, n_second: int
) -> None:
    prompts = BlockPrompts(_WORDS, _BLOCK)
    n_first, n_second = (max(2, min(n, len(ids) * _BLOCK)) for n, ids in ((n_first, first), (n_second, second)))
    one, other = _tokens(prompts.prompt(first, n_first)), _tokens(prompts.prompt(second, n_second))
    assert (len(one), len(other)) == (n_first, n_second)
    common = _shared(first, second)
    covered = min(common * _BLOCK, n_first, n_second)
    assert _shared(one, other) >= covered
    if min(n_first, n_second) >= (common + 1) * _BLOCK:  # both have the next block completely
        assert _shared(one, other) < (common + 1) * _BLOCK


def test_ids_near_and_far_are_told_apart() -> None:
    prompts = BlockPrompts(_WORDS, _BLOCK)
    tokens = [_tokens(prompts.prompt([0, number], 32)) for number in (7, 8)]
    assert _shared(*tokens) == 16
    # More ids than words: the first token cannot distinguish them all, the first three can.
    prompts = BlockPrompts(_WORDS, _BLOCK)
    beginnings = {tuple(_tokens(prompts.prompt([number], 16))[:4]) for number in range(0, 200_000, 101)}
    assert len(beginnings) == len(range(0, 200_000, 101))
    # No code may be the prefix of another: random text follows it, and two tokens leave no margin.
    prompts = BlockPrompts(calibrate(Bytes()), 2)  # 62 letters and digits: 31 x 31 ids have codes of two at most
    assert len({str(prompts.prompt([number], 2)) for number in range(31 * 31)}) == 31 * 31


def test_what_stands_around_a_block(bpe: LocalTokenizer) -> None:
    prompts = BlockPrompts(_WORDS, _BLOCK)
    first, second = (_tokens(prompts.prompt([number, 5], 32)) for number in (1, 2))
    assert first[16:] == second[16:]
    prompts = BlockPrompts(_WORDS, _BLOCK)
    first, again, other = (_tokens(prompts.prompt([3], 40, seed)) for seed in (1, 1, 2))
    assert first == again
    assert len(first) == 40
    assert 16 <= _shared(first, other) < 40
    assert len(_tokens(BlockPrompts(_WORDS, _BLOCK).prompt([3], 1))) == 2  # begin-of-text and one word
    assert len(_tokens(BlockPrompts(_WORDS, _BLOCK).prompt([], 1))) == 2
    salted = replace(_WORDS, salt="another run")
    plain, other_salt = (BlockPrompts(words, _BLOCK).prompt([0], 16) for words in (_WORDS, salted))
    assert plain != other_salt


@given(ids_lists, st.integers(1, 80))
def test_token_ids_are_told_apart_likewise(hash_ids: list[int], n_tokens: int) -> None:
    words = Words(_WORDS.vocabulary, ordinary_ids(50_000), PromptKind.IDS)
    prompt = BlockPrompts(words, _BLOCK).prompt(hash_ids, n_tokens)
    assert isinstance(prompt, list)
    assert len(prompt) == n_tokens
    assert all(isinstance(token, int) and token in ordinary_ids(50_000) for token in prompt)
    other = BlockPrompts(words, _BLOCK).prompt([(number + 1) % 2**63 for number in hash_ids], n_tokens)
    if hash_ids:
        assert prompt[0] != other[0]


def test_a_tokenizer_of_bytes_will_do() -> None:
    words = calibrate(Bytes())
    first, second = (BlockPrompts(words, _BLOCK).prompt([1, number], 32) for number in (2**63 - 1, 2**63 - 2))
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert len(first.encode()) == len(second.encode()) == 32
    assert first[:16] == second[:16]
    assert first != second


def test_what_no_block_can_tell() -> None:
    with pytest.raises(UsageError, match="too short"):
        BlockPrompts(_WORDS, 2).prompt([10**9], 2)
    with pytest.raises(UsageError, match="--vocab-size"):
        BlockPrompts(replace(_WORDS, token_ids=None, kind=PromptKind.IDS), _BLOCK).prompt([1], 16)

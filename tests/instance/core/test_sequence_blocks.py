"""Reserving, growing, publishing and freeing the blocks of a sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.ids import SequenceId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks, blocks_for
from serving.values.sequence import SamplingParams, SequenceSpec


def live(name: str, prompt: tuple[int, ...], output: tuple[int, ...] = (), **more: object) -> LiveSequence:
    sampling = SamplingParams(prompt_logprobs=more.pop("prompt_logprobs", None))  # type: ignore[arg-type]
    return LiveSequence(SequenceSpec(SequenceId(name), prompt, sampling, output, **more), (0.0, 0), 0.0)  # type: ignore[arg-type]


def blocks(num: int = 8, *, prefix_reuse: bool = True, cache_decoded: bool = True) -> SequenceBlocks:
    return SequenceBlocks(BlockPool(num), 4, prefix_reuse=prefix_reuse, cache_decoded=cache_decoded)


def compute(where: SequenceBlocks, sequence: LiveSequence) -> None:
    sequence.num_computed = len(sequence.tokens)
    where.publish(sequence)


@given(st.integers(0, 100), st.integers(1, 9))
def test_blocks_for_is_the_smallest_that_fits(tokens: int, block_tokens: int) -> None:
    count = blocks_for(tokens, block_tokens)
    assert count * block_tokens >= tokens
    assert (count - 1) * block_tokens < tokens or count == 0


@pytest.mark.parametrize(("length", "matched"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_the_last_token_is_never_matched(length: int, matched: int) -> None:
    where = blocks(16)
    first = live("a", tuple(range(13)))
    assert where.reserve(first, 0)
    compute(where, first)
    second = live("b", tuple(range(length)))
    assert where.reserve(second, 0)
    assert second.num_computed == matched
    assert second.blocks[: matched // 4] == first.blocks[: matched // 4]
    assert not set(second.blocks[matched // 4 :]) & set(first.blocks)
    where.pool.check([first.blocks, second.blocks])


@pytest.mark.parametrize("why", ["salt", "reuse off", "prompt log-probabilities", "not computed yet"])
def test_no_match(why: str) -> None:
    where = blocks(16, prefix_reuse=why != "reuse off")
    first, prompt = live("a", tuple(range(13))), tuple(range(13))
    assert where.reserve(first, 0)
    if why != "not computed yet":
        compute(where, first)
    salt = b"other" if why == "salt" else b""
    second = live("b", prompt, salt=salt, prompt_logprobs=0 if why == "prompt log-probabilities" else None)
    assert where.reserve(second, 0)
    assert second.num_computed == 0
    assert not set(first.blocks) & set(second.blocks)


def test_freed_blocks_match_until_they_are_evicted() -> None:
    where = blocks(4)
    first = live("a", tuple(range(8)))
    assert where.reserve(first, 0)
    compute(where, first)
    where.free(first)
    assert first.blocks == []
    again = live("b", tuple(range(9)))
    assert where.reserve(again, 0)
    assert again.num_computed == 8
    where.free(again)
    big = live("c", tuple(range(100, 116)))
    assert where.reserve(big, 0)
    where.free(big)
    late = live("d", tuple(range(9)))
    assert where.reserve(late, 0)
    assert late.num_computed == 0


def test_matched_cold_blocks_are_not_counted_as_free_twice() -> None:
    where = blocks(4)
    first = live("a", tuple(range(8)))
    assert where.reserve(first, 0)
    compute(where, first)
    where.free(first)
    # 4 free blocks, 2 of them cold and matched: 16 tokens just fit, 17 do not.
    assert not where.reserve(live("b", tuple(range(17))), 0)
    assert not where.reserve(live("b", tuple(range(16))), 1)
    where.pool.check()
    fits = live("b", tuple(range(16)))
    assert where.reserve(fits, 0)
    where.pool.check([fits.blocks])


def test_reserve_keeps_the_watermark_and_changes_nothing_on_refusal() -> None:
    where = blocks(4)
    sequence = live("a", tuple(range(8)))
    assert not where.reserve(sequence, 3)
    assert (sequence.blocks, sequence.num_computed) == ([], 0)
    assert where.reserve(sequence, 2)


def test_growing_takes_what_is_missing_or_nothing() -> None:
    where = blocks(3)
    sequence = live("a", (1, 2, 3, 4))
    assert where.reserve(sequence, 0)
    assert where.grow(sequence, 4)
    assert len(sequence.blocks) == 1
    assert where.grow(sequence, 5)
    assert len(sequence.blocks) == 2
    assert not where.grow(sequence, 13)
    assert len(sequence.blocks) == 2


@pytest.mark.parametrize(("cache_decoded", "published"), [(True, 3), (False, 1)])
def test_generated_tokens_are_published_only_if_wanted(cache_decoded: bool, published: int) -> None:
    where = blocks(8, cache_decoded=cache_decoded)
    sequence = live("a", tuple(range(6)), tuple(range(7)))
    assert where.reserve(sequence, 0)
    compute(where, sequence)
    assert sequence.num_published == published
    where.free(sequence)
    assert where.pool.num_cold == published


def test_handoff_hashes_cover_the_full_computed_blocks() -> None:
    where = blocks(8, cache_decoded=False)
    sequence = live("a", tuple(range(6)), tuple(range(7)))
    assert where.reserve(sequence, 0)
    sequence.num_computed = 12
    assert len(where.full_hashes(sequence)) == 3
    off = blocks(8, prefix_reuse=False)
    assert off.full_hashes(sequence) == ()
    assert off.reserve(live("b", (1, 2, 3, 4, 5)), 0)
    off.publish(sequence)
    assert off.pool.num_cold == 0

"""Blocks of sequences whose layers have a sliding window: kept, freed, matched, fetched and handed over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.ids import BlockHash, BlockId, NodeId, ReplicaId, SequenceId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence, PhaseEvent
from serving.instance.core.sequence_blocks import SequenceBlocks, blocks_for
from serving.instance.core.settings import EngineSettings
from serving.instance.core.windowed_blocks import WindowedBlocks, make_blocks
from serving.values.layer_split import GONE, FetchedRows, LayerSplit
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec

SPLIT = LayerSplit(full=1, sliding=1, window=6)
SIZE = 4
NOWHERE = BlockExtent(0, 0, 0, BlockHash(b""))


def live(name: str, prompt: tuple[int, ...]) -> LiveSequence:
    return LiveSequence(SequenceSpec(SequenceId(name), prompt, SamplingParams()), (0.0, 0), 0.0)


def blocks(num: int = 40, split: LayerSplit = SPLIT, *, step_tokens: int = 8, fetches: bool = False) -> WindowedBlocks:
    pool = BlockPool(num)
    return WindowedBlocks(
        pool, SIZE, split, prefix_reuse=True, cache_decoded=True, step_tokens=step_tokens, fetches=fetches
    )


def compute(where: WindowedBlocks, sequence: LiveSequence, upto: int) -> None:
    assert where.grow(sequence, upto)
    sequence.num_computed = upto
    where.publish(sequence)
    where.slide(sequence)


def rows(sequence: LiveSequence, split: LayerSplit = SPLIT) -> list[str]:
    """Each row as F for a full block, S for a sliding one, and a dot for a freed one."""
    letters = "F" * split.full + "S" * split.sliding
    table, width = sequence.blocks, split.width
    return [
        "".join("." if block == GONE else letter for block, letter in zip(table[at : at + width], letters, strict=True))
        for at in range(0, len(table), width)
    ]


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 20))
def test_a_row_is_kept_as_long_as_a_later_token_sees_it(window: int, position: int, size: int) -> None:
    split = LayerSplit(1, 1, window)
    first = split.first_row(position, size)
    seen = max(0, position - window + 1)
    assert first * size <= seen < (first + 1) * size
    boundary = position // size * size
    assert boundary // size - split.first_row(boundary, size) <= split.tail_rows(size)


def test_chunks_take_blocks_and_leave_those_outside_the_window() -> None:
    where, sequence = blocks(), live("a", tuple(range(20)))
    assert where.reserve(sequence, 0)
    assert rows(sequence) == ["FS", "FS"]
    compute(where, sequence, 8)
    assert rows(sequence) == ["FS", "FS"]
    compute(where, sequence, 16)
    assert rows(sequence) == ["F.", "F.", "FS", "FS"]
    assert where.pool.num_used == 6
    where.pool.check([where.held(sequence)])
    where.free(sequence)
    assert where.pool.num_used == 0


@pytest.mark.parametrize(("known", "matched"), [(5, 1), (9, 2), (13, 3), (17, 4), (40, 4)])
def test_a_beginning_is_matched_wherever_its_window_is_still_known(known: int, matched: int) -> None:
    where, first = blocks(), live("a", tuple(range(16)))
    assert where.reserve(first, 0)
    compute(where, first, 8)
    compute(where, first, 16)
    second = live("b", tuple(range(known)))
    assert where.reserve(second, 0)
    assert second.num_computed == matched * SIZE
    where.pool.check([where.held(first), where.held(second)])


def test_nothing_is_matched_up_to_a_row_whose_window_is_lost() -> None:
    where, first = blocks(), live("a", tuple(range(16)))
    assert where.reserve(first, 0)
    compute(where, first, 8)
    compute(where, first, 12)
    compute(where, first, 16)
    where.pool.distrust([first.blocks[2 * 2 + 1]])  # the sliding block of row 2
    second = live("b", tuple(range(40)))
    assert where.reserve(second, 0)
    assert second.num_computed == 2 * SIZE
    assert rows(second)[:2] == ["FS", "FS"]


def test_a_model_of_windows_only_needs_no_beginning() -> None:
    split = LayerSplit(0, 1, 6)
    where, first = blocks(split=split), live("a", tuple(range(16)))
    assert where.reserve(first, 0)
    compute(where, first, 8)
    compute(where, first, 16)
    kept = where.held(first)
    where.pool.distrust([BlockId(block) for block in range(40) if block not in kept])
    second = live("b", tuple(range(40)))
    assert where.reserve(second, 0)
    assert second.num_computed == 16
    assert rows(second, split) == [".", ".", "S", "S", "S", "S"]


@pytest.mark.parametrize(
    ("split", "num", "longest"),
    [
        (SPLIT, 20, (20 - 5) * SIZE),  # 8 + 5 tokens lie in 5 rows at most
        (SPLIT, 8, 4 * SIZE),
        (LayerSplit(2, 1, 6), 25, 10 * SIZE),
        (LayerSplit(0, 1, 6), 4, 4 * SIZE),
    ],
)
def test_the_longest_sequence_fits_with_all_that_it_has_at_one_time(split: LayerSplit, num: int, longest: int) -> None:
    where = blocks(num, split)
    assert where.max_tokens == longest
    sequence = live("a", tuple(range(longest)))
    assert where.reserve(sequence, 0)
    for upto in (*range(8, longest, 8), longest):
        compute(where, sequence, upto)


def test_windows_only_have_no_longest_sequence() -> None:
    assert blocks(5, LayerSplit(0, 1, 6)).max_tokens > 1 << 40


def fetching(where: WindowedBlocks, length: int) -> LiveSequence:
    sequence = live("a", tuple(range(length)))
    assert where.reserve(sequence, 0)
    sequence.advance(PhaseEvent.FETCH_START)
    return sequence


@pytest.mark.parametrize("found", range(6))
def test_a_fetch_fills_what_the_found_rows_need(found: int) -> None:
    where = blocks(fetches=True)
    sequence = fetching(where, 21)
    hashes, targets, asked = where.to_fetch(sequence)
    assert rows(sequence) == ["F.", "F.", "F.", "FS", "FS"]
    assert asked == FetchedRows(SPLIT, SIZE, 0)
    assert len(set(hashes)) == len(hashes) == len(targets) == 10
    needed = asked.needed(2 * found + found % 2)  # half a row is of no use
    wanted = [2 * row for row in range(found)] + [2 * row + 1 for row in range(max(0, found - 2), found)]
    assert sorted(needed) == sorted(wanted)
    filled = {index: targets[index] for index in needed}
    assert len(set(filled.values())) == len(filled)
    where.fetched(sequence, 2 * found)
    assert sequence.num_computed == found * SIZE
    assert rows(sequence) == ["F."] * max(0, found - 2) + ["FS"] * min(found, 2)
    assert {index: sequence.blocks[index] for index in needed} == filled
    assert where.pool.num_used == len(filled)
    where.pool.check([where.held(sequence)])


def test_blocks_of_a_row_are_known_by_different_hashes_of_one_length() -> None:
    own = BlockHash(bytes(range(16)))
    keys = LayerSplit(2, 2, 5).keys(own)
    assert keys[0] == own
    assert len(set(keys)) == 4
    assert {len(key) for key in keys} == {16}


def test_what_is_handed_over_is_what_the_other_side_asks_for() -> None:
    source, target = blocks(), blocks()
    first = live("a", tuple(range(18)))
    assert source.reserve(first, 0)
    for upto in (8, 16, 18):
        compute(source, first, upto)
    listed = source.to_hand_over(first)
    assert len(listed) == SPLIT.present(blocks_for(18, SIZE), 18, SIZE)
    ticket = HandoffTicket("t", ReplicaId("p"), NodeId("n"), "/s", "l", 18, tuple([NOWHERE for _ in listed]))
    asks = SequenceSpec(SequenceId("b"), tuple(range(18)), SamplingParams(), output=(7,))
    second = LiveSequence(asks, (0.0, 0), 0.0, ticket)
    assert target.reserve(second, 0)
    assert rows(second) == rows(first) == ["F.", "F.", "F.", "FS", "FS"]
    place, asked = target.to_pull(second, 18)
    assert (place, list(asked)) == (0, target.held(second))
    assert len(asked) == len(listed)


def test_a_model_without_windows_has_plain_tables() -> None:
    plain = make_blocks(EngineSettings(), BlockPool(4))
    assert type(plain) is SequenceBlocks
    assert (plain.width, plain.slides, plain.max_tokens) == (1, False, 4 * EngineSettings().block_tokens)

"""What the pool refuses, and the order in which it forgets."""

import pytest

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.block_pool import BlockPool


def name(index: int) -> BlockHash:
    return BlockHash(bytes([index]) * 16)


def test_a_pool_needs_blocks() -> None:
    with pytest.raises(LedgerError, match="at least one"):
        BlockPool(0)


def test_allocating_more_than_free_is_refused() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(LedgerError, match="asked for 2"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_blank_blocks_cannot_be_shared_nor_released_nor_published() -> None:
    pool = BlockPool(2)
    with pytest.raises(LedgerError, match="blank"):
        pool.retain([BlockId(0)])
    with pytest.raises(LedgerError, match="more often"):
        pool.release([BlockId(0)])
    with pytest.raises(LedgerError, match="while free"):
        pool.publish([BlockId(0)], [name(1)], 0, 1)


def test_a_block_keeps_its_content() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish([block], [name(1)], 0, 1)
    pool.publish([block], [name(1)], 0, 1)
    with pytest.raises(LedgerError, match="different content"):
        pool.publish([block], [name(2)], 0, 1)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool.allocate(1), "reference counts"),
        (lambda pool: pool._blank.pop(), "in 0 places"),
        (lambda pool: pool._blank.append(pool._blank[0]), "twice"),
        (lambda pool: pool._hash_of.__setitem__(pool._blank[0], name(9)), "map disagree"),
        (lambda pool: pool._cold.extend([pool._blank.pop()]), "without content"),
        (lambda pool: setattr(pool, "num_free", 2), "count as free"),
    ],
)
def test_check_finds_what_is_wrong(break_it: object, message: str) -> None:
    pool = BlockPool(3)
    pool.check()
    assert callable(break_it)
    break_it(pool)
    with pytest.raises(LedgerError, match=message):
        pool.check()

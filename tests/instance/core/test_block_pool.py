"""Refusals of the pool, and its order of eviction."""

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


def test_check_finds_what_is_wrong() -> None:
    pool = BlockPool(3)
    pool.check()
    pool.num_free = 2
    with pytest.raises(LedgerError, match="count as free"):
        pool.check()
    pool.num_free = 3
    (block,) = pool.allocate(1)
    with pytest.raises(LedgerError, match="reference counts"):
        pool.check()
    pool.check([[block]])

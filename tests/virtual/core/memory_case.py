"""Small pools in virtual time, and chains of blocks to fill them with."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from serving.config.kvcache import KvCacheConfig
from serving.ids import BlockHash
from serving.virtual.memory_pool import VirtualPool

MIB = 1 << 20


def chain(number: int, blocks: int = 8) -> list[BlockHash]:
    return [BlockHash(blake2b(b"%d/%d" % (number, i), digest_size=16).digest()) for i in range(blocks)]


def pool_of(servers: int = 4, blocks: int = 100, **settings: Any) -> VirtualPool:
    """Blocks of one MiB."""
    pace = settings.pop("migration_bytes_per_s", 100 * MIB)
    quotas = settings.pop("quotas", None)
    config = KvCacheConfig(replicas=servers, ub_memory_mib=blocks, slab_kib=1024, **settings)
    return VirtualPool(config, MIB, quotas=quotas, migration_bytes_per_s=pace, ssd_bytes_per_s=100 * MIB)


def found(pool: VirtualPool, blocks: Sequence[BlockHash], now: float, namespace: str = "default") -> int:
    """Leading blocks there, given back at once."""
    answer = pool.lookup_and_hold(namespace, blocks, 1, now)
    pool.release(answer.handle, now)
    return answer.blocks


def fill(pool: VirtualPool, chains: int, now: float = 0.0) -> None:
    for number in range(chains):
        assert pool.store("default", chain(number), 1, now).stored == 8


def run_to(pool: VirtualPool, end: float) -> None:
    """Every action at its own time, as a simulation does it."""
    while (due := pool.next_tick()) is not None and due <= end:
        pool.tick(due)
    pool.tick(end)
    pool.check()

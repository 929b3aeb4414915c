"""How much of a prompt each instance could reuse, from what instances and memory servers report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DRAM, SSD = 1, 2
"""Bits of a tier, as memory servers send them: see `Peeked`."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Leading blocks of a prompt that one instance could reuse.

    Args:
        longest: from all places together, without a gap.
        gpu: in its HBM. cpu, disk: in the pool's memory, and on its SSD tier.
    """

    instance: str
    rank: int
    longest: int
    gpu: int
    cpu: int
    disk: int


def prefix_hit(instance: str, rank: int, gpu: int, pool: Sequence[int]) -> PrefixHit:
    """Combine an instance's own blocks with the pool's.

    Args:
        gpu: leading blocks in its HBM.
        pool: for each block of the prompt the tiers of the pool that have it.
    """
    behind = _run(tiers != 0 for tiers in pool[gpu:])
    cpu, disk = (_run(tiers & bit for tiers in pool) for bit in (DRAM, SSD))
    return PrefixHit(instance, rank, gpu + behind, gpu, cpu, disk)


def joined(servers: Iterable[bytes], blocks: int) -> list[int]:
    """Tiers of each block in the whole pool, from the answers of its servers."""
    tiers = [0] * blocks
    for answer in servers:
        if len(answer) == blocks:
            tiers = [one | other for one, other in zip(tiers, answer, strict=True)]
    return tiers


def _run(there: Iterable[object]) -> int:
    count = 0
    for one in there:
        if not one:
            break
        count += 1
    return count

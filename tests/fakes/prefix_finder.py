"""A `PrefixFinder` with two instances, one of which has one block of whatever is asked, and a pool that has two."""

from collections.abc import Sequence

from serving.gateway.core.prefix_hits import PrefixHit, prefix_hit
from serving.ids import BlockHash


class FakePrefixFinder:
    """Remembers what was asked."""

    block_tokens = 16

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[BlockHash, ...]]] = []

    async def find(self, namespace: str, hashes: Sequence[BlockHash]) -> list[PrefixHit]:
        """One block of the first instance, and two of the pool, the second on disk only."""
        self.asked.append((namespace, tuple(hashes)))
        pool = [3, 2, *[0] * len(hashes)][: len(hashes)]
        return [prefix_hit("decode#1", 0, min(1, len(hashes)), pool), prefix_hit("decode#2", 1, 0, pool)]

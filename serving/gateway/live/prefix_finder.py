"""Where a prompt's prefix is cached now: asks every instance and every memory server, and leases nothing."""

import asyncio
from collections.abc import Sequence

from serving.gateway.core.prefix_hits import PrefixHit, joined, prefix_hit
from serving.gateway.live.pool_admin import LivePoolAdmin
from serving.gateway.live.pool_links import PoolLinks
from serving.ids import BlockHash

INSTANCES_S = 0.5
SERVERS_S = 1.0
"""How long an answer is waited for; who is late counts as having nothing."""
AT_ONCE = 4
"""Queries of this gateway that run at a time; further ones wait."""


class LivePrefixFinder:
    """`PrefixFinder` over a gateway's links. Used from one event loop.

    Args:
        pool: None if there is none.
    """

    def __init__(self, links: PoolLinks, pool: LivePoolAdmin | None, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._links = links
        self._pool = pool
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, namespace: str, hashes: Sequence[BlockHash]) -> list[PrefixHit]:
        """See `PrefixFinder.find`."""
        if not hashes:
            return [
                prefix_hit(link.replica, 0, 0, ()) for link in sorted(self._links.up(), key=lambda one: one.replica)
            ]
        async with self._turns:
            asked = {link.replica: link.ask_facts(tuple(hashes)) for link in self._links.up()}
            if asked:
                await asyncio.wait(asked.values(), timeout=INSTANCES_S)
            facts = {name: one.result() for name, one in asked.items() if one.done()}
            layouts = {one["kv_layout"] for one in facts.values() if "kv_layout" in one}
            pools = {layout: await self._pool_tiers(namespace, layout, hashes) for layout in sorted(layouts)}
        return [
            prefix_hit(name, one["rank"], one["prefix_blocks"], pools[one["kv_layout"]])
            for name, one in sorted(facts.items())
            if "kv_layout" in one
        ]

    async def _pool_tiers(self, namespace: str, layout: str, hashes: Sequence[BlockHash]) -> list[int]:
        answers = [] if self._pool is None else await self._pool.peek(namespace, layout, hashes, SERVERS_S)
        return joined(answers, len(hashes))

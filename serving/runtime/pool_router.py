"""Feeds `policy.router` with what the links know, and remembers what was just sent where."""

import asyncio

from serving.policy.gateway_router import GatewayRouter
from serving.policy.journal_commands import NeedDecode, NeedPrefill
from serving.policy.prefix_hash import prefix_hashes
from serving.policy.request_journal import SequenceJournal
from serving.policy.router import InstanceView, RouteDecision
from serving.runtime.pool_links import PoolLinks


class PoolRouter:
    """Chooses instances for one gateway.

    Args:
        pools: names of the engine pools in the order of a request's life; one name when a pool does both.
        router: decides; was asked nothing yet.
    """

    def __init__(self, links: PoolLinks, pools: list[str], block_tokens: int, router: GatewayRouter) -> None:
        self._links = links
        self._router = router
        self._prefill, self._decode = pools[0], pools[-1]
        self._block_tokens = block_tokens

    def ready(self) -> bool:
        """True when every role has an instance that is not draining."""
        return all(self._staying(pool) for pool in (self._prefill, self._decode))

    def decide(self, need: NeedPrefill | NeedDecode, journal: SequenceJournal) -> RouteDecision:
        """Choose an instance and book what it is about to get.

        Raises: UnavailableError when there is none.
        """
        tokens = len(journal.spec.prompt) + len(journal.output)
        blocks = -(-tokens // self._block_tokens) + 1
        if isinstance(need, NeedDecode):
            decision = self._router.decode(self._views(self._decode), blocks, need.exclude)
            self._reserve(decision, 0, blocks)
            return decision
        # A prefill pool that is gone is no reason to fail: a decode instance computes prompts too, only less well.
        views = self._staying(self._prefill) or self._views(self._decode)
        spec = journal.spec
        hashes = prefix_hashes(spec.prompt, self._block_tokens, spec.salt) if self._router.by_locality else ()
        decision = self._router.prefill(views, need.tokens, need.exclude, hashes)
        self._reserve(decision, need.tokens, blocks)
        return decision

    def _staying(self, pool: str) -> list[InstanceView]:
        return [view for view in self._views(pool) if not view.draining]

    def _reserve(self, decision: RouteDecision, tokens: int, blocks: int) -> None:
        link = self._links.link(decision.replica)
        if link is not None:
            link.reserved_tokens += tokens
            link.reserved_blocks += blocks
            link.reserved_sequences += 1

    def _views(self, pool: str) -> list[InstanceView]:
        now = asyncio.get_running_loop().time()
        return [
            InstanceView(
                replica=link.replica,
                pool=pool,
                node=link.welcome.node,
                queued_tokens=status.queued_tokens,
                sequences=status.running + status.waiting,
                kv_blocks_free=status.blocks_free,
                kv_blocks_total=link.welcome.kv_blocks,
                age_s=now - link.heard_at,
                draining=status.draining,
                reserved_tokens=link.reserved_tokens,
                reserved_sequences=link.reserved_sequences,
                reserved_blocks=link.reserved_blocks,
            )
            for link in self._links.up()
            if link.welcome is not None and link.welcome.pool == pool and (status := link.status) is not None
        ]

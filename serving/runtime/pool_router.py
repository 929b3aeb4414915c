"""Feeds `policy.router` with what the links know, and remembers what was just sent where."""

import asyncio

from serving.policy.journal_commands import NeedDecode, NeedPrefill
from serving.policy.locality import PrefixHistory, route_prefill_by_locality
from serving.policy.prefix_hash import prefix_hashes
from serving.policy.request_journal import SequenceJournal
from serving.policy.router import InstanceView, RouteDecision, route_decode, route_prefill
from serving.runtime.pool_links import SILENCE_LIMIT_S, PoolLinks

HISTORY_BLOCKS = 65_536
"""Blocks that the gateway remembers of each instance: 1 M tokens in blocks of 16."""


class PoolRouter:
    """Chooses instances for one gateway.

    Args:
        pools: names of the engine pools in the order of a request's life; one name when a pool does both.
        locality: prompts follow their beginnings; else they go wherever the least work waits.
    """

    def __init__(self, links: PoolLinks, pools: list[str], block_tokens: int, *, locality: bool = False) -> None:
        self._links = links
        self._history = PrefixHistory(HISTORY_BLOCKS) if locality else None
        self._prefill, self._decode = pools[0], pools[-1]
        self._block_tokens = block_tokens
        # One counter a role: with a common one, the two routes of every request would keep ties from taking turns.
        self._prefills = 0
        self._decodes = 0

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
            self._decodes += 1
            decision = route_decode(self._views(self._decode), blocks, self._decodes, SILENCE_LIMIT_S, need.exclude)
            self._reserve(decision, 0, blocks)
            return decision
        # A prefill pool that is gone is no reason to fail: a decode instance computes prompts too, only less well.
        views = self._staying(self._prefill) or self._views(self._decode)
        decision = self._decide_prefill(views, need, journal)
        self._reserve(decision, need.tokens, blocks)
        return decision

    def _decide_prefill(self, views: list[InstanceView], need: NeedPrefill, journal: SequenceJournal) -> RouteDecision:
        history = self._history
        self._prefills += 1
        if history is None:
            return route_prefill(views, need.tokens, self._prefills, SILENCE_LIMIT_S, need.exclude)
        for gone in set(history.replicas()) - {view.replica for view in views}:
            history.forget(gone)
        hashes = prefix_hashes(journal.spec.prompt, self._block_tokens, journal.spec.salt)
        decision = route_prefill_by_locality(
            views, hashes, self._block_tokens, need.tokens, history, self._prefills, SILENCE_LIMIT_S, need.exclude
        )
        history.note(decision.replica, hashes)
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

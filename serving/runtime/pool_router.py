"""Feeds `policy.router` with what the links know, and remembers what was just sent where."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.policy.gateway_router import GatewayRouter
from serving.policy.journal_commands import NeedDecode, NeedPrefill
from serving.policy.link_health import decodes_to_avoid, prefills_to_avoid
from serving.policy.output_reserve import OutputReserve
from serving.policy.prefix_hash import prefix_hashes
from serving.policy.request import SequenceSpec
from serving.policy.request_journal import SequenceJournal
from serving.policy.router import InstanceView, RouteDecision
from serving.runtime.pool_links import PoolLinks


@dataclass(frozen=True, slots=True)
class Idlest:
    """The instance with the fewest sequences.

    Args:
        load: its sequences.
        among: those that were looked at.
    """

    replica: ReplicaId
    load: int
    among: frozenset[ReplicaId]


class PoolRouter:
    """Chooses instances for one gateway.

    Args:
        pools: names of the engine pools in the order of a request's life; one name when a pool does both.
        router: decides; was asked nothing yet.
        max_age_s: as the router's: an instance not heard of for longer is dead.
    """

    def __init__(
        self, links: PoolLinks, pools: list[str], block_tokens: int, router: GatewayRouter, max_age_s: float
    ) -> None:
        self._links = links
        self._router = router
        self._max_age_s = max_age_s
        self._prefill, self._decode = pools[0], pools[-1]
        self._block_tokens = block_tokens
        self._reserve = OutputReserve(block_tokens)
        self._no_decode_since: float | None = None

    def open(self) -> bool:
        """True when some instance would take a prompt now, and see it through: either role stands in for the other."""
        oldest = asyncio.get_running_loop().time() - self._max_age_s
        return any(
            link.welcome is not None
            and link.welcome.pool in (self._prefill, self._decode)
            and link.heard_at >= oldest
            and not status.draining
            for link in self._links.up()
            if (status := link.status) is not None
        )

    def decodes_nowhere(self, now: float) -> float:
        """For how long there has been no decode instance [s]. Effects: time counts from the first call of those."""
        if self._staying(self._decode):
            self._no_decode_since = None
            return 0.0
        self._no_decode_since = now if self._no_decode_since is None else self._no_decode_since
        return now - self._no_decode_since

    def hashes(self, spec: SequenceSpec) -> tuple[BlockHash, ...]:
        """Of the prompt's full blocks, if routing asks for them. They go along: no instance computes them again.

        A prompt of 4,096 tokens takes about a quarter of a millisecond.
        """
        if not self._router.wants_hashes:
            return spec.prompt_hashes
        return spec.prompt_hashes or prefix_hashes(spec.prompt, self._block_tokens, spec.salt)

    def grew(self, sequence_id: SequenceId, tokens: int) -> None:
        """A sequence has so many new tokens."""
        self._reserve.grew(sequence_id, tokens)

    def ended(self, sequence_id: SequenceId) -> None:
        """A sequence needs no room any more."""
        self._reserve.drop(sequence_id)

    def elsewhere(self, handoff: bool) -> bool:
        """Whether something that an instance wants to be rid of finds another one: a handoff, else a prompt."""
        return bool(self._staying(self._decode) or (not handoff and self._staying(self._prefill)))

    def computed_elsewhere(self, source: ReplicaId) -> bool:
        """Whether a stream that nobody can adopt goes on at another instance that computes it anew.

        So it is where prefill stands in for decode, and `source` is the one of the prefill instances that leaves: they
        adopt nothing. A decode instance that leaves as the last one keeps its streams.
        """
        link = self._links.link(source)
        if link is None or link.welcome is None or link.welcome.pool == self._decode or self._staying(self._decode):
            return False
        return any(view.replica != source for view in self._staying(self._prefill))

    def decide(
        self, need: NeedPrefill | NeedDecode, journal: SequenceJournal, closed: Collection[ReplicaId | None] = ()
    ) -> RouteDecision:
        """Choose an instance and book what it is about to get.

        Args:
            closed: instances that are out of the question.
        Raises: UnavailableError when there is none.
        """
        spec = journal.spec
        tokens = len(spec.prompt) + len(journal.output)
        left = spec.sampling.max_tokens - len(journal.output)
        blocks = -(-tokens // self._block_tokens) + 1
        if isinstance(need, NeedDecode):
            avoid = decodes_to_avoid(need.ticket.source, self._links.troubles(self._decode))
            needed = blocks + self._reserve.expected_blocks(left)
            views = self._holding(self._views(self._decode), tokens + 1)
            decision = self._router.decode(_open(views, closed), needed, (*need.exclude, *avoid))
            self._book(decision, blocks)
            self._reserve.book(spec.sequence_id, decision.replica, left)
            return decision
        # A prefill pool that is gone is no reason to fail: a decode instance computes prompts too, only less well.
        views = self._staying(self._prefill) or self._views(self._decode)
        views = _open(self._roomy(views, tokens + min(left, 2)), closed)
        avoid = prefills_to_avoid([view.replica for view in views], self._links.troubles(self._decode))
        decision = self._router.prefill(views, need.tokens, (*need.exclude, *avoid), spec.prompt_hashes)
        self._book(decision, blocks)
        return decision

    def idlest(self, journal: SequenceJournal) -> Idlest | None:
        """Where a sequence would be alone soonest, from its prompt to its end."""
        known = len(journal.spec.prompt) + len(journal.output)
        views = self._staying(self._prefill) or self._staying(self._decode)
        views = self._roomy(views, known + min(journal.spec.sampling.max_tokens - len(journal.output), 2))
        loads = [(view.sequences + view.reserved_sequences, view.replica) for view in views]
        if not loads:
            return None
        load, replica = min(loads)
        return Idlest(replica, load, frozenset(view.replica for view in views))

    def forget(self, replica: ReplicaId) -> None:
        """An instance is gone."""
        self._router.forget(replica)

    def _staying(self, pool: str) -> list[InstanceView]:
        return [view for view in self._views(pool) if not view.draining and view.age_s <= self._max_age_s]

    def _roomy(self, views: list[InstanceView], tokens: int) -> list[InstanceView]:
        """Those that hold so many tokens; if there are none, decode instances that do; if there are none, all.

        A token that fills an instance is the last one there: who is to give more has room for two. A prompt, or a
        stream that was computed here at its beginning, may be too long for every prefill instance.
        """
        return self._holding(views, tokens) or self._holding(self._staying(self._decode), tokens) or views

    def _holding(self, views: list[InstanceView], tokens: int) -> list[InstanceView]:
        """Those whose whole memory holds so many tokens: the others would refuse them however long they wait."""
        return [view for view in views if view.kv_blocks_total * self._block_tokens >= tokens]

    def _book(self, decision: RouteDecision, blocks: int) -> None:
        link = self._links.link(decision.replica)
        if link is not None:
            link.reserved_tokens += decision.tokens
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
                promised_blocks=self._reserve.blocks(link.replica),
                tokens_per_s=status.tokens_per_s,
                gateways=status.gateways,
            )
            for link in self._links.up()
            if link.welcome is not None and link.welcome.pool == pool and (status := link.status) is not None
        ]


def _open(views: Sequence[InstanceView], closed: Collection[ReplicaId | None]) -> list[InstanceView]:
    return [view for view in views if view.replica not in closed]

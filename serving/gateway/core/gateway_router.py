"""One gateway's routes: what `router` and `locality` need beyond a single question is kept here.

Three things outlive a question: whose turn it is when instances are equal, which prompts were sent where, and how much
of a new prompt is therefore probably cached. By locality that is asked of each instance; else of the KV-cache pool,
which every instance reaches alike, so that it does not change the choice but tells how much work is being sent.
"""

from collections.abc import Sequence

from serving.gateway.core.locality import PrefixHistory, route_prefill_by_locality, uncached_cost
from serving.gateway.core.prefill_cost import PrefillCost
from serving.gateway.core.route_decision import InstanceView, RouteDecision, RouteTurn, Rule
from serving.gateway.core.router import route_decode, route_prefill
from serving.ids import BlockHash, NodeId, ReplicaId

_POOL = ReplicaId("")
"""In a history: all instances together."""


class GatewayRouter:
    """Chooses instances, one question after the other."""

    def __init__(
        self,
        max_age_s: float,
        block_tokens: int,
        history_blocks: int = 0,
        rule: Rule | None = None,
        seed: int = 0,
        attention_tokens: float = 0.0,
        *,
        prefer_host: bool = False,
    ) -> None:
        """
        Args:
            max_age_s: older views count as dead.
            block_tokens: tokens per KV block.
            history_blocks: blocks remembered, of each instance by locality, else of the pool; 0 = nothing is taken to
                be cached, and no hashes are asked for.
            rule: how instances are chosen; None = by locality if there is a history, else by load.
            seed: the gateway's own, so that several do not begin with the same instance.
            attention_tokens: see `PrefillCost`.
            prefer_host: of decode instances that are equal, those where the prompt was computed come first.
        """
        self._max_age_s = max_age_s
        self._block_tokens = block_tokens
        self._history = PrefixHistory(history_blocks) if history_blocks else None
        self._rule: Rule = rule or ("locality" if history_blocks else "load")
        self._seed = seed
        self._prefer_host = prefer_host
        self._cost = PrefillCost(attention_tokens)
        # One counter a role: with a common one, the two routes of every request would keep ties from taking turns.
        self._prefills = 0
        self._decodes = 0

    @property
    def wants_hashes(self) -> bool:
        """Whether `prefill` wants the prompt's hashes."""
        return self._history is not None

    def prefill(
        self,
        views: Sequence[InstanceView],
        tokens: int,
        exclude: Sequence[ReplicaId] = (),
        hashes: Sequence[BlockHash] = (),
    ) -> RouteDecision:
        """Where a prompt is computed.

        Args:
            tokens: to be computed where nothing of it is cached.
            hashes: of the prompt's full blocks; asked only if `wants_hashes`.
        Returns: the decision; its `tokens` are what the caller books there.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the question; remembers what is sent where.
        """
        history, age = self._history, self._max_age_s
        self._prefills += 1
        turn = RouteTurn(self._prefills, self._seed)
        if history is None or self._rule != "locality":
            cached = history.matched(_POOL, hashes) * self._block_tokens if history is not None else 0
            work = uncached_cost(self._cost, tokens, cached)
            decision = route_prefill(views, work, turn, age, exclude, self._rule)
            if history is not None:
                history.note(_POOL, hashes)
            return decision
        decision = route_prefill_by_locality(
            views, hashes, self._block_tokens, tokens, history, turn, age, exclude, self._cost
        )
        history.note(decision.replica, hashes)
        return decision

    def forget(self, replica: ReplicaId) -> None:
        """An instance is gone, or comes back without its cache. That it is not among some views says neither: it may
        only be closed to that prompt.
        """
        if self._history is not None:
            self._history.forget(replica)

    def decode(
        self,
        views: Sequence[InstanceView],
        blocks: int,
        exclude: Sequence[ReplicaId] = (),
        source: NodeId | None = None,
    ) -> RouteDecision:
        """Where a handoff goes.

        Args:
            blocks: KV blocks of the tokens known so far, and of those that are expected.
            source: host of the KV blocks.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the question.
        """
        self._decodes += 1
        rule: Rule = "load" if self._rule == "locality" else self._rule
        turn, host = RouteTurn(self._decodes, self._seed), (source or None) if self._prefer_host else None
        return route_decode(views, blocks, turn, self._max_age_s, exclude, rule, host)

"""One gateway's routing state: what `router` and `locality` need across decisions.

Three things persist between decisions: the turn among equal instances, the prompts sent to each instance, and so the
share of a new prompt that is probably cached. Under the locality rule that share is estimated per instance. Otherwise
it is estimated for the KV-cache pool, which all instances reach equally: it does not affect the choice, only the
estimate of the work sent.
"""

from collections.abc import Sequence

from serving.gateway.core.locality import PrefixHistory, route_prefill_by_locality, uncached_cost
from serving.gateway.core.prefill_cost import PrefillCost
from serving.gateway.core.route_decision import InstanceView, RouteDecision, RouteTurn, Rule
from serving.gateway.core.router import route_decode, route_prefill
from serving.ids import BlockHash, NodeId, ReplicaId

_POOL = ReplicaId("")
"""Key in a history for all instances together."""


class GatewayRouter:
    """Chooses instances, one decision after the other."""

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
            max_age_s: views older than this count as dead.
            block_tokens: tokens per KV block.
            history_blocks: blocks remembered, per instance under the locality rule, else for the pool; 0 = assume that
                no tokens are cached, and use no hashes.
            rule: how instances are chosen; None = by locality if there is a history, else by load.
            seed: different for each gateway, so that they do not all start with the same instance.
            attention_tokens: see `PrefillCost`.
            prefer_host: among equal decode instances, prefer those on the host that computed the prompt.
        """
        self._max_age_s = max_age_s
        self._block_tokens = block_tokens
        self._history = PrefixHistory(history_blocks) if history_blocks else None
        self._rule: Rule = rule or ("locality" if history_blocks else "load")
        self._seed = seed
        self._prefer_host = prefer_host
        self._cost = PrefillCost(attention_tokens)
        # One counter per role: with a common counter, the two routes of every request would keep ties from alternating.
        self._prefills = 0
        self._decodes = 0

    @property
    def wants_hashes(self) -> bool:
        """Whether `prefill` uses the prompt's hashes."""
        return self._history is not None

    def prefill(
        self,
        views: Sequence[InstanceView],
        tokens: int,
        exclude: Sequence[ReplicaId] = (),
        hashes: Sequence[BlockHash] = (),
    ) -> RouteDecision:
        """Choose the instance that computes a prompt.

        Args:
            tokens: to compute if none of them is cached.
            hashes: of the prompt's full blocks; needed only if `wants_hashes`.
        Returns: the decision; the caller reserves its `tokens` at that instance.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the decision; records the prompt in the history.
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
        """Drop the history of an instance that was lost, or restarted without its cache.

        Not needed for an instance that is missing in a single call's views: it may be excluded for that prompt only.
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
        """Choose the decode instance for a handoff.

        Args:
            blocks: KV blocks of the tokens so far and of the expected ones.
            source: host of the KV blocks.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the decision.
        """
        self._decodes += 1
        rule: Rule = "load" if self._rule == "locality" else self._rule
        turn, host = RouteTurn(self._decodes, self._seed), (source or None) if self._prefer_host else None
        return route_decode(views, blocks, turn, self._max_age_s, exclude, rule, host)

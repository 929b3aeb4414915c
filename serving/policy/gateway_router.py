"""One gateway's routes: what `router` and `locality` need beyond a single question is kept here.

Two things outlive a question: whose turn it is when instances are equal, and which prompts were sent where.
"""

from collections.abc import Sequence

from serving.ids import BlockHash, ReplicaId
from serving.policy.locality import PrefixHistory, route_prefill_by_locality
from serving.policy.router import InstanceView, RouteDecision, route_decode, route_prefill


class GatewayRouter:
    """Chooses instances, one question after the other."""

    def __init__(self, max_age_s: float, block_tokens: int, history_blocks: int = 0) -> None:
        """
        Args:
            max_age_s: older views count as dead.
            block_tokens: tokens per KV block.
            history_blocks: blocks remembered of each instance, for prompts to follow their beginnings; 0 = they go
                wherever the least work waits.
        """
        self._max_age_s = max_age_s
        self._block_tokens = block_tokens
        self._history = PrefixHistory(history_blocks) if history_blocks else None
        # One counter a role: with a common one, the two routes of every request would keep ties from taking turns.
        self._prefills = 0
        self._decodes = 0

    @property
    def by_locality(self) -> bool:
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
            hashes: of the prompt's full blocks; asked only `by_locality`.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the question; remembers what is sent where.
        """
        history, age = self._history, self._max_age_s
        self._prefills += 1
        if history is None:
            return route_prefill(views, tokens, self._prefills, age, exclude)
        known = {view.replica for view in views}
        for replica in history.replicas():
            if replica not in known:
                history.forget(replica)
        decision = route_prefill_by_locality(
            views, hashes, self._block_tokens, tokens, history, self._prefills, age, exclude
        )
        history.note(decision.replica, hashes)
        return decision

    def decode(self, views: Sequence[InstanceView], blocks: int, exclude: Sequence[ReplicaId] = ()) -> RouteDecision:
        """Where a handoff goes.

        Args:
            blocks: KV blocks of the tokens known so far.
        Raises: UnavailableError if no live instance is known.
        Effects: counts the question.
        """
        self._decodes += 1
        return route_decode(views, blocks, self._decodes, self._max_age_s, exclude)

"""One gateway's routing state: what `router` needs across decisions.

Three things persist between decisions: the turn among equal instances, the prompts sent to each instance, and so the
share of a new prompt that is probably cached. Under the locality rule that share is estimated per instance. Otherwise
it is estimated for the KV-cache pool, which all instances reach equally: it does not affect the choice, only the
estimate of the work sent.
"""

from collections import deque
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core.route_decision import InstanceView, PrefillCost, RouteDecision, RouteTurn, Rule
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


# Baseline routing without the pool: send a prompt to an instance that has its prefix cached.
#
# Systems route like this if instances do not share their caches. A gateway cannot see those caches; it estimates them
# from the prompts that it sent. Following the prefix alone would send a popular one to a single instance, so the choice
# is by predicted work: queued work plus the work of computing the prompt. Locality wins until the queue outweighs its
# savings. With the pool, `router.route_prefill` needs no estimate: any instance reads any block.


class _Sent:
    """The blocks most recently sent to one instance: an LRU in which a whole prompt is one use.

    A block's position in the order is that in the latest prompt that contains it. Its positions in earlier prompts are
    void, and skipped.
    """

    __slots__ = ("_most", "_places", "_prompts", "newest")

    def __init__(self, most: int) -> None:
        self.newest: dict[BlockHash, int] = {}
        """Block -> the latest prompt that has it."""
        self._most = most
        self._prompts: deque[tuple[int, list[BlockHash]]] = deque()
        self._places = 0
        """Places of all prompts, including void ones."""

    def note(self, hashes: Sequence[BlockHash]) -> None:
        if not hashes:
            return
        newest = self.newest
        prompt = self._prompts[-1][0] + 1 if self._prompts else 0
        fresh = dict.fromkeys(hashes, prompt)
        newest.update(fresh)
        self._prompts.append((prompt, [*fresh]))
        self._places += len(fresh)
        excess = len(newest) - self._most
        while excess > 0:
            oldest, blocks = self._prompts[0]
            part = blocks[-excess:]
            del blocks[-excess:]
            self._places -= len(part)
            if not blocks:
                self._prompts.popleft()
            part = [one for one in part if newest[one] == oldest]
            for one in part:
                del newest[one]
            excess -= len(part)
        if self._places > 4 * self._most:
            self._sweep()

    def _sweep(self) -> None:
        """Drop void positions."""
        newest = self.newest
        valid = [(prompt, [one for one in blocks if newest[one] == prompt]) for prompt, blocks in self._prompts]
        self._prompts = deque(one for one in valid if one[1])
        self._places = len(newest)


class PrefixHistory:
    """Blocks recently sent to each instance, as an estimate of its cache.

    An LRU of hashes per instance, like the cache that it models; the end of a prompt is evicted before its beginning,
    because a block after a gap is useless.
    """

    __slots__ = ("_blocks", "_sent")

    def __init__(self, blocks: int) -> None:
        """
        Args:
            blocks: remembered per instance; ideally the size of its cache.
        Raises: LedgerError if there is none.
        """
        if blocks < 1:
            raise LedgerError(f"a history needs room for at least one block, got {blocks}")
        self._blocks = blocks
        self._sent: dict[ReplicaId, _Sent] = {}

    def note(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> None:
        """Record a prompt sent to an instance. Effects: evicts the oldest blocks beyond the limit."""
        sent = self._sent.get(replica)
        if sent is None:
            sent = self._sent[replica] = _Sent(self._blocks)
        sent.note(hashes)

    def matched(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> int:
        """Leading blocks of a prompt that are probably cached at an instance."""
        sent = self._sent.get(replica)
        if sent is None:
            return 0
        newest = sent.newest
        for index, one in enumerate(hashes):
            if one not in newest:
                return index
        return len(hashes)

    def forget(self, replica: ReplicaId) -> None:
        """Drop an instance that was lost with its cache. Unknown ones are ignored."""
        self._sent.pop(replica, None)


def uncached_cost(cost: PrefillCost, tokens: int, cached: int) -> int:
    """The work of a prompt that is partly cached.

    Args:
        tokens: of the prompt; cached: its leading tokens whose KV is probably cached.
    Returns: short-prompt tokens; at least one is always computed: the last one's logits give the first new token.
    """
    uncached = max(min(tokens, 1), tokens - cached)
    return cost.tokens(uncached, tokens - uncached)


def route_prefill_by_locality(
    views: Sequence[InstanceView],
    hashes: Sequence[BlockHash],
    block_tokens: int,
    tokens: int,
    history: PrefixHistory,
    turn: int | RouteTurn,
    max_age_s: float,
    exclude: Collection[ReplicaId] = (),
    cost: PrefillCost | None = None,
) -> RouteDecision:
    """Choose the instance with the least predicted work, after subtracting its probable prefix match.

    The caller records in `history` the instance to which the prompt was sent.

    Args:
        hashes: of the prompt's full blocks.
        block_tokens: tokens per block.
        tokens: work of this sequence if nothing is cached.
        turn, max_age_s, exclude: as in `route_prefill`.
        cost: relative cost of tokens; None = all equal.
    Raises: UnavailableError if no live instance is known.
    """
    price = cost or PrefillCost()
    matched = {v.replica: history.matched(v.replica, hashes) for v in views}

    def added(view: InstanceView) -> int:
        return uncached_cost(price, tokens, matched[view.replica] * block_tokens)

    decision = route_prefill(views, tokens, turn, max_age_s, exclude, "locality", added)
    found = f"{matched[decision.replica]} of {len(hashes)} blocks probably cached there, "
    return replace(decision, reason=found + decision.reason)

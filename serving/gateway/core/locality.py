"""Baseline routing without the pool: send a prompt to an instance that has its prefix cached.

Systems route like this if instances do not share their caches. A gateway cannot see those caches; it estimates them
from the prompts that it sent. Following the prefix alone would send a popular one to a single instance, so the choice
is by predicted work: queued work plus the work of computing the prompt. Locality wins until the queue outweighs its
savings. With the pool, `router.route_prefill` needs no estimate: any instance reads any block.

"""

from collections import deque
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core.prefill_cost import PrefillCost
from serving.gateway.core.route_decision import InstanceView, RouteDecision, RouteTurn
from serving.gateway.core.router import route_prefill
from serving.ids import BlockHash, ReplicaId


class _Sent:
    """The blocks most recently sent to one instance: an LRU in which a whole prompt is one use.

    A block's position in the order is that in the latest prompt that contains it. Its positions in earlier prompts are
    void, and skipped.
    """

    __slots__ = ("_most", "_places", "_prompts", "newest")

    def __init__(self, most: int) -> None:
        self.newest: dict[BlockHash, int] = {}
        """Block -> the newest prompt that has it."""
        self._most = most
        self._prompts: deque[tuple[int, list[BlockHash]]] = deque()
        self._places = 0
        """In all prompts, void ones included."""

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

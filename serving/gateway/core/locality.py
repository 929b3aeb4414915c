"""The baseline that the pool makes unnecessary: send a prompt where its prefix is cached.

This is how systems route whose instances keep their caches to themselves. A gateway cannot see those caches; it guesses
from what it sent where. Following the prefix blindly would pile a popular one onto one instance, so that the choice is
by predicted work: what waits there plus what would have to be computed there. Locality is followed until the queue
outweighs what it saves.

With the pool, `router.route_prefill` needs no such guess: any instance reaches any block.
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
    """The blocks that one instance was sent last: an LRU in which a whole prompt is one use.

    A block's place in the order is its place in the newest prompt that has it. Its places in older ones are void, and
    passed over.
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
        """Drop void places."""
        newest = self.newest
        valid = [(prompt, [one for one in blocks if newest[one] == prompt]) for prompt, blocks in self._prompts]
        self._prompts = deque(one for one in valid if one[1])
        self._places = len(newest)


class PrefixHistory:
    """Which blocks each instance was sent lately, as a guess at what it has cached.

    For each instance an LRU of hashes, like the cache that it stands for; the end of a prompt leaves before its
    beginning, since a block behind a gap is of no use.
    """

    __slots__ = ("_blocks", "_sent")

    def __init__(self, blocks: int) -> None:
        """
        Args:
            blocks: remembered per instance; best as many as its cache has.
        Raises: LedgerError if there is none.
        """
        if blocks < 1:
            raise LedgerError(f"a history needs room for at least one block, got {blocks}")
        self._blocks = blocks
        self._sent: dict[ReplicaId, _Sent] = {}

    def note(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> None:
        """This prompt was sent there. Effects: the oldest blocks are forgotten when there are too many."""
        sent = self._sent.get(replica)
        if sent is None:
            sent = self._sent[replica] = _Sent(self._blocks)
        sent.note(hashes)

    def matched(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> int:
        """Leading blocks of a prompt that are probably cached there."""
        sent = self._sent.get(replica)
        if sent is None:
            return 0
        newest = sent.newest
        for index, one in enumerate(hashes):
            if one not in newest:
                return index
        return len(hashes)

    def forget(self, replica: ReplicaId) -> None:
        """This instance is gone, and its cache with it. Unknown ones are ignored."""
        self._sent.pop(replica, None)


def uncached_cost(cost: PrefillCost, tokens: int, cached: int) -> int:
    """The work of a prompt of which so much is probably cached.

    Args:
        tokens: of the prompt; cached: its leading tokens whose KV is probably there.
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
    """Choose the instance with the least predicted work, its probable prefix matches taken off.

    The caller notes in `history` where it really sent the prompt.

    Args:
        hashes: of the prompt's full blocks.
        block_tokens: tokens per block.
        tokens: that this sequence adds where nothing of it is cached.
        turn, max_age_s, exclude: as in `route_prefill`.
        cost: what tokens cost; None = all the same.
    Raises: UnavailableError if no live instance is known.
    """
    price = cost or PrefillCost()
    matched = {v.replica: history.matched(v.replica, hashes) for v in views}

    def added(view: InstanceView) -> int:
        return uncached_cost(price, tokens, matched[view.replica] * block_tokens)

    decision = route_prefill(views, tokens, turn, max_age_s, exclude, "locality", added)
    found = f"{matched[decision.replica]} of {len(hashes)} blocks probably cached there, "
    return replace(decision, reason=found + decision.reason)

"""The baseline that the pool makes unnecessary: send a prompt where its prefix is cached.

This is how systems route whose instances keep their caches to themselves. A gateway cannot see those caches; it guesses
from what it sent where. Following the prefix blindly would pile a popular one onto one instance, so that the choice is
by predicted work: what waits there plus what would have to be computed there. Locality is followed until the queue
outweighs what it saves.

With the pool, `router.route_prefill` needs no such guess: any instance reaches any block.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.ids import BlockHash, ReplicaId
from serving.policy.prefill_cost import PrefillCost
from serving.policy.router import InstanceView, RouteDecision, Turn, route_prefill


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
        self._sent: dict[ReplicaId, OrderedDict[BlockHash, None]] = {}

    def note(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> None:
        """This prompt was sent there. Effects: the oldest blocks are forgotten when there are too many."""
        sent = self._sent.setdefault(replica, OrderedDict())
        for one in reversed(hashes):
            sent[one] = None
            sent.move_to_end(one)
        while len(sent) > self._blocks:
            sent.popitem(last=False)

    def matched(self, replica: ReplicaId, hashes: Sequence[BlockHash]) -> int:
        """Leading blocks of a prompt that are probably cached there. Effects: none."""
        sent = self._sent.get(replica, ())
        return next((index for index, one in enumerate(hashes) if one not in sent), len(hashes))

    def forget(self, replica: ReplicaId) -> None:
        """This instance is gone, and its cache with it. Unknown ones are ignored."""
        self._sent.pop(replica, None)

    def replicas(self) -> tuple[ReplicaId, ...]:
        """Instances with a history; the caller forgets those that left."""
        return tuple(self._sent)


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
    turn: int | Turn,
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
    Effects: none.
    """
    price = cost or PrefillCost()
    matched = {v.replica: history.matched(v.replica, hashes) for v in views}

    def added(view: InstanceView) -> int:
        return uncached_cost(price, tokens, matched[view.replica] * block_tokens)

    decision = route_prefill(views, tokens, turn, max_age_s, exclude, "locality", added)
    found = f"{matched[decision.replica]} of {len(hashes)} blocks probably cached there, "
    return replace(decision, reason=found + decision.reason)

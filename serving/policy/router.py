"""Which instance computes a prompt, and which one decodes it.

Prefill goes where the least work waits, counted in uncached tokens, because that is what a prompt costs there. Decode
goes where the KV blocks fit, and among those where the fewest sequences share the step. A view is always a little old;
what this gateway sent there since is added as a reservation, else all requests of one interval would pick the same
instance. There is no affinity to where a prefix is cached: any instance reaches any block.
"""

from collections.abc import Collection, Sequence
from operator import attrgetter

from msgspec import Struct

from serving.errors import UnavailableError
from serving.ids import NodeId, ReplicaId

RETRY_WITHOUT_INSTANCE_S = 1.0
"""A replaced replica takes seconds to come up; asking again each second costs nothing."""

_by_name = attrgetter("replica")

ROLE_WAIT_S = 15.0
"""How long a sequence waits for any instance of the role it needs: longer than a replica takes to be replaced."""


class InstanceView(Struct, frozen=True, gc=False):
    """What a gateway knows of one instance.

    Args:
        pool: name of its pool, for the reason text.
        queued_tokens: tokens waiting to be computed there.
        sequences: sequences waiting, being pulled or running there.
        kv_blocks_free: free or evictable blocks.
        age_s: time since the view was taken.
        reserved_tokens, reserved_sequences, reserved_blocks: sent there by this gateway since the view was taken.
    """

    replica: ReplicaId
    pool: str
    node: NodeId
    queued_tokens: int
    sequences: int
    kv_blocks_free: int
    kv_blocks_total: int
    age_s: float = 0.0
    draining: bool = False
    reserved_tokens: int = 0
    reserved_sequences: int = 0
    reserved_blocks: int = 0


class RouteDecision(Struct, frozen=True, gc=False):
    """Where to send a sequence, and why."""

    replica: ReplicaId
    node: NodeId
    reason: str


def route_prefill(
    views: Sequence[InstanceView],
    uncached_tokens: int,
    tie_break: int,
    max_age_s: float,
    exclude: Collection[ReplicaId] = (),
) -> RouteDecision:
    """Choose the instance with the least predicted work.

    Args:
        uncached_tokens: tokens that this sequence adds.
        tie_break: a counter or random number; equal instances share by its remainder.
        max_age_s: older views count as dead.
        exclude: instances that failed this sequence before; used only if no other is left.
    Raises: UnavailableError if no live instance is known.
    """
    candidates = usable(views, max_age_s, exclude, "prefill")
    loads = [v.queued_tokens + v.reserved_tokens for v in candidates]
    least = min(loads)
    tied = [v for v, load in zip(candidates, loads, strict=True) if load == least]
    chosen = tied[tie_break % len(tied)]
    reason = (
        f"{least} + {uncached_tokens} uncached tokens, the least of {len(candidates)} in pool {chosen.pool}"
        f"{f', {len(tied)} tied' if len(tied) > 1 else ''}"
    )
    return RouteDecision(chosen.replica, chosen.node, reason)


def route_decode(
    views: Sequence[InstanceView],
    needed_blocks: int,
    tie_break: int,
    max_age_s: float,
    exclude: Collection[ReplicaId] = (),
) -> RouteDecision:
    """Choose the instance with room for the KV blocks and the fewest sequences; without room anywhere, the roomiest.

    An instance without room holds the pull back until it has some, so a full pool slows down and refuses nothing here.

    Args:
        needed_blocks: KV blocks of the tokens known so far.
        tie_break, max_age_s, exclude: as in `route_prefill`.
    Raises: UnavailableError if no live instance is known.
    """
    candidates = usable(views, max_age_s, exclude, "decode")
    roomy = [v for v in candidates if _room(v) >= needed_blocks]
    if not roomy:
        most = max(_room(v) for v in candidates)
        tied = [v for v in candidates if _room(v) == most]
        chosen = tied[tie_break % len(tied)]
        reason = f"none of {len(candidates)} has {needed_blocks} free blocks; {most} is the most, it will wait there"
        return RouteDecision(chosen.replica, chosen.node, reason)
    loads = [(v.sequences + v.reserved_sequences, -_room(v)) for v in roomy]
    best = min(loads)
    tied = [v for v, load in zip(roomy, loads, strict=True) if load == best]
    chosen = tied[tie_break % len(tied)]
    reason = (
        f"room for {needed_blocks} blocks ({-best[1]} free), {best[0]} sequences, "
        f"the fewest of {len(roomy)} with room in pool {chosen.pool}"
    )
    return RouteDecision(chosen.replica, chosen.node, reason)


def _room(view: InstanceView) -> int:
    return view.kv_blocks_free - view.reserved_blocks


def usable(
    views: Sequence[InstanceView], max_age_s: float, exclude: Collection[ReplicaId], role: str
) -> list[InstanceView]:
    """Live instances in a fixed order, those to avoid only when there is no other.

    Raises: UnavailableError if no live instance is known.
    """
    live = [v for v in views if not v.draining and v.age_s <= max_age_s]
    live.sort(key=_by_name)
    if not live:
        draining = sum(v.draining for v in views)
        raise UnavailableError(
            f"no {role} instance can serve: {len(views)} known, {draining} draining, the rest silent for {max_age_s} s",
            retry_after_s=RETRY_WITHOUT_INSTANCE_S,
        )
    return [v for v in live if v.replica not in exclude] or live if exclude else live

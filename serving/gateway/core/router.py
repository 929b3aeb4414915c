"""Routing rules: the instance that computes a prompt, and the one that decodes it.

Prefill is routed to the instance with the earliest predicted first token, from its queued work, the prompt's own work
and its measured speed. Decode is routed to an instance with capacity for the KV blocks, and among those to the one with
the fewest sequences and KV blocks. There is no affinity to a cached prefix: any instance reads any block.

A view is always slightly stale, and other gateways use the same stale view. So the work that this gateway sent since
the view is added, once per gateway: the others have very probably sent as much. Instances that are equal, or within a
few percent, take turns, and each gateway starts its turns at a different instance. `round_robin` and `power_of_two` are
the baselines. Hosts are equal, unless `[serving] handoff` prefers the prompt's own among equal decode instances.
"""

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from serving.errors import UnavailableError
from serving.gateway.core.route_decision import InstanceView, RouteDecision, RouteTurn, Rule
from serving.ids import NodeId, ReplicaId

RETRY_WITHOUT_INSTANCE_S = 1.0
"""A replaced replica takes seconds to come up; a retry every second costs nothing."""

NEAR = 0.05
"""Loads this close are equal: they are not known more precisely, and all gateways would follow the same strict
order."""

SLOW, SLOWEST = 0.5, 0.25
"""Below `SLOW` times the median speed an instance counts as a straggler, but never as slower than `SLOWEST` times that.
Smaller differences reflect the recent work, because full steps are faster than small ones: if they counted, busy
instances would get more of it. A straggler must get some work, otherwise it would remain one forever."""

LEAST_SHARE = 0.05
"""Least fraction of its usual sequences that an instance can request."""

_by_name = attrgetter("replica")


def route_prefill(
    views: Sequence[InstanceView],
    uncached_tokens: int,
    turn: int | RouteTurn,
    max_age_s: float,
    exclude: Collection[ReplicaId] = (),
    rule: Rule = "load",
    added: Callable[[InstanceView], int] | None = None,
) -> RouteDecision:
    """Choose the instance with the earliest first token.

    Args:
        uncached_tokens: work that this sequence adds, in tokens of a short prompt.
        turn: a counter or more; equal instances alternate by it.
        max_age_s: views older than this count as dead.
        exclude: instances that failed this sequence before; used only if no other is left.
        rule: how to choose; `locality` differs from `load` only by `added`.
        added: the work, if it depends on the instance.
    Returns: the decision; its `tokens` must be reserved.
    Raises: UnavailableError if no live instance is known.
    """
    candidates = usable(views, max_age_s, exclude, "prefill")
    known = sorted([v.tokens_per_s for v in candidates if v.tokens_per_s > 0])
    usual = known[len(known) // 2] if known else 1.0
    straggling, slowest = SLOW * usual, SLOWEST * usual
    queued = [v.queued_tokens + v.reserved_tokens * v.gateways for v in candidates]
    own = [uncached_tokens] * len(candidates) if added is None else [added(v) for v in candidates]
    speed = [max(v.tokens_per_s, slowest) if 0 < v.tokens_per_s < straggling else usual for v in candidates]
    seconds = [(waits + adds) / pace for waits, adds, pace in zip(queued, own, speed, strict=True)]
    # Queued work is known roughly, this prompt's own work exactly; and a near tie is not worth a cached prefix.
    near = 0.0 if rule == "locality" else NEAR * min(queued) / usual
    place, among = choose(seconds, turn, rule, near)
    chosen = candidates[place]
    predicted = f" in {seconds[place]:.3f} s" if known else ""
    against = _next(seconds, place, "{:.3f} s" if known else "{:.0f} tokens")
    reason = f"{queued[place]} + {own[place]} uncached tokens{predicted}, {among} in pool {chosen.pool}{against}"
    return RouteDecision(chosen.replica, chosen.node, reason, own[place])


def route_decode(
    views: Sequence[InstanceView],
    needed_blocks: int,
    turn: int | RouteTurn,
    max_age_s: float,
    exclude: Collection[ReplicaId] = (),
    rule: Rule = "load",
    host: NodeId | None = None,
) -> RouteDecision:
    """Choose the least loaded instance with capacity for the KV blocks; if none has it, the one with most capacity.

    An instance without capacity delays the pull until blocks are free, so a full pool slows down instead of refusing.
    Load is the sum of two shares of the mean: sequences, because each takes a row of every step, and KV blocks, because
    attention reads them all. An instance that requests a reduced share counts as more loaded.

    Args:
        needed_blocks: KV blocks of the tokens so far, and of the expected ones.
        turn, max_age_s, exclude, rule: as in `route_prefill`.
        host: among equal instances with capacity, prefer those on this host; None = no preference.
    Raises: UnavailableError if no live instance is known.
    """
    candidates = usable(views, max_age_s, exclude, "decode")
    rooms = [_room(v) for v in candidates]
    if max(rooms) < needed_blocks:
        place, _ = choose([-room for room in rooms], turn, "load")
        chosen = candidates[place]
        reason = f"none of {len(rooms)} has {needed_blocks} free blocks; {rooms[place]} is the most, it will wait there"
        return RouteDecision(chosen.replica, chosen.node, reason)
    roomy = [v for v, room in zip(candidates, rooms, strict=True) if room >= needed_blocks]
    rooms = [room for room in rooms if room >= needed_blocks]
    inside = [v.sequences + v.reserved_sequences * v.gateways for v in roomy]
    used = [v.kv_blocks_total - room for v, room in zip(roomy, rooms, strict=True)]
    sequences, blocks = max(1.0, sum(inside) / len(roomy)), max(1.0, sum(used) / len(roomy))
    loads = [one / sequences + other / blocks for one, other in zip(inside, used, strict=True)]
    if any([v.share < 1.0 for v in roomy]):  # count one sequence more, so that an empty slow rank is not load 0
        own = 1 / sequences
        loads = [(load + own) / max(v.share, LEAST_SHARE) for load, v in zip(loads, roomy, strict=True)]
    favoured = [place for place, v in enumerate(roomy) if v.node == host] if host is not None else []
    place, among = choose(loads, turn, rule, NEAR * min(loads), favoured)
    chosen = roomy[place]
    reason = (
        f"room for {needed_blocks} blocks ({rooms[place]} free), {inside[place]} sequences, load {loads[place]:.2f}, "
        f"{among} with room in pool {chosen.pool}{_next(loads, place, '{:.2f}')}"
    )
    return RouteDecision(chosen.replica, chosen.node, reason)


def _next(loads: Sequence[float], place: int, form: str) -> str:
    """Text with the load that the choice was compared with: the least of the others."""
    others = [*loads[:place], *loads[place + 1 :]]
    return f", next {form.format(min(others))}" if others else ""


def choose(
    loads: Sequence[float], turn: int | RouteTurn, rule: Rule, near: float = 0.0, favoured: Sequence[int] = ()
) -> tuple[int, str]:
    """Choose one of several instances by a rule.

    Args:
        loads: of the instances, at least one, in a fixed order; less is better.
        near: loads that exceed the least load by at most this are equal to it.
        favoured: indices preferred among the equal; the baselines ignore them.
    Returns: index of the chosen instance, and the alternatives it was compared with, as text.
    """
    turn = turn if isinstance(turn, RouteTurn) else RouteTurn(turn)
    count = len(loads)
    if rule == "round_robin":
        return (turn.seed + turn.counter) % count, f"its turn of {count}"
    if rule == "power_of_two":
        first, second = two_of(count, turn.seed, turn.counter)
        return (second if loads[second] < loads[first] else first), f"the lesser of two drawn from {count}"
    if count == 1:
        return 0, "the least of 1"
    bound = min(loads) + near
    tied = [place for place, load in enumerate(loads) if load <= bound]
    alike = f", {len(tied)} equal" if len(tied) > 1 else ""
    if favoured and (here := [place for place in tied if place in favoured]):
        tied, alike = here, f"{alike}, {len(here)} on the prompt's host"
    return tied[(turn.seed + turn.counter) % len(tied)], f"the least of {count}{alike}"


def _room(view: InstanceView) -> int:
    return view.kv_blocks_free - (view.reserved_blocks + view.promised_blocks) * view.gateways


def usable(
    views: Sequence[InstanceView], max_age_s: float, exclude: Collection[ReplicaId], role: str
) -> list[InstanceView]:
    """Live instances in a fixed order; excluded ones only if there are no others.

    Raises: UnavailableError if no live instance is known.
    """
    live = [v for v in views if not v.draining and v.age_s <= max_age_s]
    live.sort(key=_by_name)
    if not live:
        draining = sum([v.draining for v in views])
        raise UnavailableError(
            f"no {role} instance can serve: {len(views)} known, {draining} draining, the rest silent for {max_age_s} s",
            retry_after_s=RETRY_WITHOUT_INSTANCE_S,
        )
    return [v for v in live if v.replica not in exclude] or live if exclude else live


# Draws without a generator: the n-th draw is a function of seed and n, so that a replay draws the same.

_MASK = (1 << 64) - 1


def draw(seed: int, counter: int, below: int) -> int:
    """The `counter`-th draw of `seed`.

    Args:
        below: number of outcomes; at least one.
    Returns: 0 ... `below` - 1, uniformly distributed.
    Source: the finaliser of splitmix64.
    """
    value = (seed * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((value ^ (value >> 31)) * below) >> 64


def two_of(count: int, seed: int, counter: int) -> tuple[int, int]:
    """Two different indices below `count`, or the same index twice if there is only one."""
    first = draw(seed, 2 * counter, count)
    if count < 2:
        return first, first
    second = draw(seed, 2 * counter + 1, count - 1)
    return first, second + (second >= first)

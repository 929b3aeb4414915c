"""Placements of a group in Ray: on one node, as windows are shared memory of one host, unless it may span several.

A named, detached placement group has a bundle for each initial rank of the group. Placement groups cannot grow, so each
rank that is added later has one of its own on the same node; a shrinking group removes these and keeps the first one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from serving.group.core.rank_life import placement_group_name

_ADDED = re.compile(r"(?P<group>[^#]+#[^.]+)\.r(?P<rank>\d+)")
_NODE_LABEL = "ray.io/node-id"


class NoPlaceYetError(Exception):
    """The group itself has no placement yet, so no rank can be added on its node."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A placement as listed by Ray.

    Args:
        rank: its added rank; None = the initial ranks of the group.
        bundles: number of bundles. node: their node; empty = not placed yet.
    """

    group: str
    rank: int | None
    bundles: int
    node: str


def placement(
    session: str, group: str, rank: int, size: int, resources: Mapping[str, float], *, across_nodes: bool = False
) -> tuple[PlacementGroup, int]:
    """The place of a rank, and its bundle there; made if there is none. Ray gives it room as soon as its node has that.

    Args:
        size: ranks of the group as it is to be: a group that has no place yet gets one for all of them.
        resources: of one rank.
        across_nodes: whether the group may be spread, over as few nodes as possible.
    Raises: NoPlaceYetError; what Ray raises. Blocks.
    """
    title, bundle = placement_group_name(session, group), dict(resources)
    seen = {one.rank: one for one in _places(session) if one.group == group}
    first, own = seen.get(None), seen.get(rank)
    if first is None:
        strategy = "PACK" if across_nodes else "STRICT_PACK"
        made: PlacementGroup = placement_group([bundle] * size, strategy, name=title, lifetime="detached")
        return made, rank
    if rank < first.bundles:
        return ray.util.get_placement_group(title), rank
    if not first.node:
        raise NoPlaceYetError(group)
    title = f"{title}.r{rank}"
    if own is not None and not across_nodes and own.node not in ("", first.node):  # the group has moved to another node
        remove_placement_group(ray.util.get_placement_group(title))
        own = None
    if own is not None:
        return ray.util.get_placement_group(title), 0
    selector = None if across_nodes else [{_NODE_LABEL: first.node}]
    made = placement_group([bundle], "STRICT_PACK", name=title, lifetime="detached", bundle_label_selector=selector)
    return made, 0


def remove_placement(session: str, group: str, rank: int | None = None) -> None:
    """Give the places of a group back, or that of one rank which was added; those that are there.

    Raises: what Ray raises. Blocks.
    Effects: Ray ends what runs there.
    """
    for one in _places(session):
        if one.group == group and rank in (None, one.rank):
            added = "" if one.rank is None else f".r{one.rank}"
            title = f"{placement_group_name(session, group)}{added}"
            remove_placement_group(ray.util.get_placement_group(title))


@dataclass(frozen=True, slots=True)
class PlacedGroups:
    """Places of a pool.

    Args:
        groups: that have some.
        added: group and rank of those that are one rank's own.
        room: by group, ranks that have a place, and as many more as are free where it may have them.
    """

    groups: frozenset[str]
    added: frozenset[tuple[str, int]]
    room: Mapping[str, int]


def placed_groups(
    session: str, pool: str, resources: Mapping[str, float], *, across_nodes: bool = False
) -> PlacedGroups:
    """Places of a pool's groups.

    Args:
        resources: of one rank.
        across_nodes: whether a group may be spread.
    Raises: what Ray raises. Blocks.
    """
    seen = [one for one in _places(session) if one.group.startswith(f"{pool}#")]
    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]
    room = {}
    for first in (one for one in seen if one.rank is None):
        added = sum(one.rank is not None and one.group == first.group for one in seen)
        nodes = free.values() if across_nodes else [free.get(first.node, {})]
        more = sum(_fitting(left, resources) for left in nodes)
        room[first.group] = first.bundles + added + more
    return PlacedGroups(
        frozenset(one.group for one in seen),
        frozenset((one.group, one.rank) for one in seen if one.rank is not None),
        room,
    )


def _fitting(left: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """Ranks for which a node has room."""
    return min((int(left.get(name, 0.0) // amount) for name, amount in resources.items() if amount), default=0)


def _places(session: str) -> list[_Seen]:
    start, found = placement_group_name(session, ""), []
    for one in ray.util.placement_group_table().values():
        name = str(one["name"])
        if one["state"] == "REMOVED" or not name.startswith(start):
            continue
        name = name.removeprefix(start)
        added = _ADDED.fullmatch(name)
        nodes = {str(node) for node in one.get("bundles_to_node_id", {}).values() if node}
        group, rank = (added["group"], int(added["rank"])) if added is not None else (name, None)
        found.append(_Seen(group, rank, len(one["bundles"]), min(nodes, default="")))
    return found

"""Placements of a group in Ray: on one node, as windows are shared memory of one host, unless it may span several.

A named, detached placement group has a bundle for each initial rank of the group. Placement groups cannot grow, so each
rank that is added later has one of its own on the same node; a shrinking group removes these and keeps the first one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hardware.ray_resources import replica_resources
from serving.config.engine import PoolConfig
from serving.config.experts import ExpertsConfig
from serving.group.core.group_sides import GroupSizes
from serving.group.core.rank_life import placement_group_name
from serving.values.group import RankRole

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


@dataclass(frozen=True, slots=True)
class RankKind:
    """Ranks of one role: their possible numbers, and the resources of each."""

    sizes: GroupSizes
    resources: Mapping[str, float]


def rank_kinds(pool: PoolConfig, experts: ExpertsConfig) -> tuple[RankKind, ...]:
    """Kinds of ranks that a pool's groups have."""
    roles = (RankRole.ATTENTION, RankRole.EXPERTS) if pool.has_roles else (RankRole.BOTH,)
    most = experts.most_ranks_of(*pool.sides)
    return tuple(
        RankKind(GroupSizes(first, most, experts.redundant, experts.spares, role), replica_resources(*each))
        for role, first, each in zip(roles, pool.sides, pool.rank_resources, strict=True)
    )


def kind_of(kinds: Sequence[RankKind], rank: int) -> RankKind:
    """The kind of a rank, by its number."""
    return next(one for one in kinds if one.sizes.has(rank))


def placement(
    session: str, group: str, rank: int, kinds: Sequence[RankKind], *, across_nodes: bool = False
) -> tuple[PlacementGroup, int]:
    """The place of a rank, and its bundle there; made if there is none. Ray gives it room as soon as its node has that.

    Args:
        kinds: of the group's ranks; one that has no place yet gets one for all that it starts with.
        across_nodes: whether the group may be spread, over as few nodes as possible.
    Raises: NoPlaceYetError; what Ray raises. Blocks.
    """
    title = placement_group_name(session, group)
    seen = {one.rank: one for one in _places(session) if one.group == group}
    first, own = seen.get(None), seen.get(rank)
    begun = {number: dict(kind.resources) for kind in kinds for number in kind.sizes.start}
    made: PlacementGroup
    if first is None:
        strategy = "PACK" if across_nodes else "STRICT_PACK"
        made = placement_group(list(begun.values()), strategy, name=title, lifetime="detached")
        first = _Seen(group, None, len(begun), "")
    else:
        made = ray.util.get_placement_group(title)
    if rank in begun:
        return made, list(begun).index(rank)
    if not first.node:
        raise NoPlaceYetError(group)
    title = f"{title}.r{rank}"
    if own is not None and not across_nodes and own.node not in ("", first.node):  # the group has moved to another node
        remove_placement_group(ray.util.get_placement_group(title))
        own = None
    if own is not None:
        return ray.util.get_placement_group(title), 0
    selector = None if across_nodes else [{_NODE_LABEL: first.node}]
    bundle = dict(kind_of(kinds, rank).resources)
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
        room: by group and role, ranks that have a place, and as many more as are free where it may have them.
    """

    groups: frozenset[str]
    added: frozenset[tuple[str, int]]
    room: Mapping[tuple[str, RankRole], int]


def placed_groups(session: str, pool: str, kinds: Sequence[RankKind], *, across_nodes: bool = False) -> PlacedGroups:
    """Places of a pool's groups.

    Args:
        kinds: of their ranks.
        across_nodes: whether a group may be spread.
    Raises: what Ray raises. Blocks.
    """
    seen = [one for one in _places(session) if one.group.startswith(f"{pool}#")]
    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]
    room = {}
    for first in (one for one in seen if one.rank is None):
        added = [one.rank for one in seen if one.rank is not None and one.group == first.group]
        nodes = free.values() if across_nodes else [free.get(first.node, {})]
        for kind in kinds:
            more = sum(_fitting(left, kind.resources) for left in nodes)
            placed = kind.sizes.first + sum(kind.sizes.has(rank) for rank in added)
            room[first.group, kind.sizes.role] = placed + more
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

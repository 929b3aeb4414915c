"""The place of a group in Ray: one named, detached placement group on one node, with a bundle for each rank."""

from collections.abc import Mapping

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from serving.instance.core.rank_names import placement_group_name


def placement(session: str, group: str, ranks: int, resources: Mapping[str, float]) -> PlacementGroup:
    """The place of a group, made if there is none; Ray gives it room as soon as a node has that.

    Args:
        ranks: how many. resources: of one rank.
    Raises: what Ray raises. Blocks.
    """
    found = _find(session, group)
    if found is not None:
        return found
    title = placement_group_name(session, group)
    made: PlacementGroup = placement_group([dict(resources)] * ranks, "STRICT_PACK", name=title, lifetime="detached")
    return made


def remove_placement(session: str, group: str) -> None:
    """Give the place of a group back, if it is there.

    Raises: what Ray raises. Blocks.
    Effects: Ray ends what runs there.
    """
    found = _find(session, group)
    if found is not None:
        remove_placement_group(found)


def placed_groups(session: str, pool: str) -> list[str]:
    """Names of a pool's groups that have a place.

    Raises: what Ray raises. Blocks.
    """
    start = placement_group_name(session, "")
    table = ray.util.placement_group_table().values()
    names = [str(one["name"]).removeprefix(start) for one in table if one["state"] != "REMOVED"]
    return [name for name in names if name.startswith(f"{pool}#")]


def _find(session: str, group: str) -> PlacementGroup | None:
    try:
        found: PlacementGroup = ray.util.get_placement_group(placement_group_name(session, group))
    except ValueError:
        return None
    return found

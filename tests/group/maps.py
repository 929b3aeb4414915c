"""Maps of groups that have lost ranks."""

from collections.abc import Iterable

from serving.group.core.group_map import contents_of, regroup_map
from serving.values.expert_map import ExpertMap


def map_of(opening: ExpertMap, members: Iterable[int], version: int) -> ExpertMap:
    """The map of a group's remaining members, each with its initial contents."""
    held = {rank: contents_of(opening, rank) for rank in members}
    return regroup_map(held, len(opening.slots), len(opening.layers[0].homes), version)

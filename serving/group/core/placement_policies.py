"""Placement policies by the names that `[experts] policy` and `--policy` give them."""

from serving.group.core.deepseek import GlobalPlacement, HierarchicalPlacement
from serving.group.core.placement import PlacementPolicy, StaticPlacement
from serving.group.core.time_sliced import TimeSlicedPlacement

NONE = "none"
"""Experts move only when an operator says so."""


def policy_of(name: str, groups: int = 1) -> PlacementPolicy | None:
    """The policy of that name; None if there is none.

    Args:
        groups: of experts, as the model's router has them.
    """
    match name:
        case "static":
            return StaticPlacement()
        case "global":
            return GlobalPlacement()
        case "hierarchical":
            return HierarchicalPlacement(groups)
        case "time_sliced":
            return TimeSlicedPlacement()
        case _:
            return None

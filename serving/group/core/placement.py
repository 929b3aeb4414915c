"""Port of placement policies, and the policy that places experts as they are numbered."""

from dataclasses import dataclass
from typing import Protocol

from serving.errors import PlacementError
from serving.group.core.load import LayerLoad
from serving.values.expert_map import Placement


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Room of a group.

    Args:
        slots: [rank] slots a layer; 0 = takes no experts.
        nodes: [rank] its node.
    """

    slots: tuple[int, ...]
    nodes: tuple[int, ...]

    def ranks(self) -> list[int]:
        """Ranks that take experts."""
        return [rank for rank, slots in enumerate(self.slots) if slots]


class PlacementPolicy(Protocol):
    """Chooses the contents of the slots of one layer.

    Every expert gets a slot, and at most one on each rank: a second copy there would get no tokens, so surplus slots
    remain empty. Numbers of experts, slots and ranks are arbitrary.
    """

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """Placement of one layer.

        Args:
            load: [slice][expert] tokens to plan for; may be empty.
            current: present contents of slots; a policy may stay close to them.
        Raises: PlacementError if the group has fewer slots than experts.
        """
        ...


class StaticPlacement:
    """Experts by number, in equal runs; redundant slots stay empty."""

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """See `PlacementPolicy`; ignores load and current placement."""
        return numbered(experts, shape)


def numbered(experts: int, shape: GroupShape) -> Placement:
    """Experts in runs that are as equal as the ranks' slots allow, the first ones longer.

    Raises: PlacementError.
    """
    check_room(experts, shape)
    sizes = [0] * len(shape.slots)
    for _ in range(experts):
        free = [rank for rank in shape.ranks() if sizes[rank] < shape.slots[rank]]
        sizes[min(free, key=lambda rank: (sizes[rank], rank))] += 1
    found: list[tuple[int | None, ...]] = []
    first = 0
    for size, slots in zip(sizes, shape.slots, strict=True):
        found.append((*range(first, first + size), *[None] * (slots - size)))
        first += size
    return tuple(found)


def check_room(experts: int, shape: GroupShape) -> None:
    """Refuse a group that cannot hold every expert once.

    Raises: PlacementError.
    """
    if sum(shape.slots) < experts:
        raise PlacementError(
            f"{experts} experts need as many slots, but the group has {sum(shape.slots)}; add ranks or redundant slots"
        )

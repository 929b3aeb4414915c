"""Groups whose shell has ended: which of them a new shell takes over, and which placements have no rank."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group and its latest known shell.

    Args:
        shell: holder of its lease, or its founder if no rank has reported one.
        size: target number of ranks; 0 = it drains and ends; None = unknown.
        former: previous number of ranks, while it grows; else 0.
    """

    name: str
    shell: str
    term: int = 1
    size: int | None = None
    former: int = 0

    @property
    def leaving(self) -> bool:
        """Whether it shuts down."""
        return self.size == 0


def orphan(groups: Iterable[SeenGroup], shells: Collection[str]) -> SeenGroup | None:
    """The group that a new shell takes over: one whose shell has ended, and that does not shut down.

    Args:
        shells: existing ones, without the new shell.
    """
    lost = [one for one in groups if one.shell not in shells and not one.leaving]
    return min(lost, key=lambda one: one.name, default=None)


def abandoned(places: Collection[str], groups: Collection[str], shells: Collection[str]) -> list[str]:
    """Groups that have a placement but no ranks, and whose founding shell has ended: Ray keeps the placement of a group
    whose node was lost.

    A shell that takes over such a group and restarts its ranks makes a new placement as well.

    Args:
        places: names of groups with a placement. groups: names of groups with ranks. shells: existing ones.
    """
    return sorted(name for name in places if name not in groups and name.partition("#")[2] not in shells)


def spare_places(places: Iterable[int], ranks: Collection[int], size: int) -> list[int]:
    """Ranks with an unused placement of their own, which a shell did not release before it ended.

    Args:
        places: added ranks, which have a placement of their own. ranks: those with a process.
        size: of the group, its spares included.
    """
    return sorted(rank for rank in places if rank >= size and rank not in ranks)

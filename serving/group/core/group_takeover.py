"""Groups that shells have left behind: the one that a new shell takes over, and places that belong to no rank."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group that some shell has made.

    Args:
        shell: that holds it, or made it if no rank says more.
        size: ranks that it is to have; 0 = it drains, and ends; None = no rank has said.
        former: ranks that it had, while it grows; else 0.
    """

    name: str
    shell: str
    term: int = 1
    size: int | None = None
    former: int = 0

    @property
    def leaving(self) -> bool:
        """Whether it is to end."""
        return self.size == 0


def orphan(groups: Iterable[SeenGroup], shells: Collection[str]) -> SeenGroup | None:
    """The group that a new shell takes over: one whose shell does not exist any more, and that does not leave.

    Args:
        shells: that exist, the asker apart, which has none yet.
    """
    lost = [one for one in groups if one.shell not in shells and not one.leaving]
    return min(lost, key=lambda one: one.name, default=None)


def abandoned(places: Collection[str], groups: Collection[str], shells: Collection[str]) -> list[str]:
    """Groups that have a place and no ranks, and that the shell which made them does not look after: a node was lost
    with all of them, and Ray keeps the place for ever.

    A shell that took such a group over, and is about to make its ranks anew, makes the place anew as well.

    Args:
        places: names of groups that have a place. groups: of those that have ranks. shells: that exist.
    """
    return sorted(name for name in places if name not in groups and name.partition("#")[2] not in shells)


def spare_places(places: Iterable[int], ranks: Collection[int], size: int) -> list[int]:
    """Ranks whose own places nobody needs any more: those that a shell did not live to give back.

    Args:
        places: ranks that were added and have a place of their own. ranks: that have a process.
        size: of the group, its spares included.
    """
    return sorted(rank for rank in places if rank >= size and rank not in ranks)

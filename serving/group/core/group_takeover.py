"""Groups whose shell has ended: which of them a new shell takes over, and which placements have no rank."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from serving.group.core.group_sides import GroupSizes, first_lease
from serving.values.group import RankLease


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group and its latest known shell.

    Args:
        shell: holder of its lease, or its founder if no rank has reported one.
        lease: of its latest shell; None = unknown.
    """

    name: str
    shell: str
    lease: RankLease | None = None

    @property
    def leaving(self) -> bool:
        """Whether it shuts down."""
        return self.lease is not None and not self.lease.ranks


def orphan(groups: Iterable[SeenGroup], shells: Collection[str]) -> SeenGroup | None:
    """The group that a new shell takes over: one whose shell has ended, and that does not shut down.

    Args:
        shells: existing ones, without the new shell.
    """
    lost = [one for one in groups if one.shell not in shells and not one.leaving]
    return min(lost, key=lambda one: one.name, default=None)


def next_lease(taken: SeenGroup | None, own: RankLease, sizes: Sequence[GroupSizes]) -> RankLease:
    """Lease for the group that a shell takes over, or for a new one.

    Args:
        own: has the shell's name and process.
        sizes: at the start, where no others are known.
    """
    if taken is None or taken.lease is None:
        return first_lease(own.shell, own.pid, 2 if taken is not None else 1, sizes)
    return replace(taken.lease, shell=own.shell, pid=own.pid, term=taken.lease.term + 1, share=1.0)


def abandoned(places: Collection[str], groups: Collection[str], shells: Collection[str]) -> list[str]:
    """Groups that have a placement but no ranks, and whose founding shell has ended: Ray keeps the placement of a group
    whose node was lost.

    A shell that takes over such a group and restarts its ranks makes a new placement as well.

    Args:
        places: names of groups with a placement. groups: names of groups with ranks. shells: existing ones.
    """
    return sorted(name for name in places if name not in groups and name.partition("#")[2] not in shells)


def spare_places(places: Iterable[int], ranks: Collection[int], wanted: Collection[int]) -> list[int]:
    """Ranks with an unused placement of their own, which a shell did not release before it ended.

    Args:
        places: added ranks, which have a placement of their own. ranks: those with a process.
        wanted: ranks that the group is to have.
    """
    return sorted(rank for rank in places if rank not in wanted and rank not in ranks)

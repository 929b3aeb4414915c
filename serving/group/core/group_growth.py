"""Changes of a group's size: the next lease, and when a side that grows keeps its former size."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from serving.group.core.group_sides import GroupSide, GroupSizes, RankSnapshot, resize_refusal, whole_sides
from serving.values.group import RankLease, RankPhase, RankRole, ResizeGroup

MOST_TRIES = 3
"""Processes of one newcomer that may end before it joins; then another one would end, too."""


class GroupGrowth:
    """Newcomers of a group's sides, and the number of their processes.

    Args:
        sides: of the group; those that do not grow are ignored.
        births: processes that each rank had had when this began, or when this shell took the group over.
    """

    def __init__(self, sides: Sequence[GroupSide] = (), births: Mapping[int, int] | None = None) -> None:
        self._sides = [side for side in sides if side.former]
        self._births = dict(births or {})

    def __bool__(self) -> bool:
        return bool(self._sides)

    def hopeless(self, births: Mapping[int, int]) -> GroupSide | None:
        """A side of which a newcomer cannot be built; None if there is none.

        Args:
            births: processes that each rank has had by now.
        """
        for side in self._sides:
            newcomers = side.of(births).items()
            if any(rank >= side.new.start and n - self._births.get(rank, 0) > MOST_TRIES for rank, n in newcomers):
                return side
        return None


def given_up(group: str, side: GroupSide) -> str:
    """Words for an operator about a side whose newcomers cannot be built."""
    return (
        f"{group} cannot have {side.size} {side.kind}s: the new ones cannot be built, see their logs. It keeps "
        f"{side.former}. Fix the cause, then run `cloudmatrix experts resize` again"
    )


def resized(lease: RankLease, role: RankRole, size: int) -> RankLease:
    """The lease of the same shell with another number of ranks of a role."""
    before, former = lease.of(role)
    return replace(lease.sized(role, size, former_size(before, former, size)), term=lease.term + 1)


def resize_plan(
    lease: RankLease, sizes: Iterable[GroupSizes], order: ResizeGroup, experts: int
) -> tuple[RankLease, str]:
    """The lease of the same shell as an operator requests it, and why that is impossible; empty if it is not.

    Args:
        experts: of a layer; 0 = not known yet.
    """
    of = {one.role: one for one in sizes}
    given = {RankRole.EXPERTS: order.expert_ranks, next(iter(of)): order.ranks}
    if order.expert_ranks is not None and RankRole.EXPERTS not in of:
        return lease, "this group has no expert ranks: its ranks have both roles"
    for role, size in given.items():
        if size is None or size == lease.of(role)[0]:
            continue
        if refusal := resize_refusal(size, of[role], experts or size):
            return lease, refusal
        lease = resized(lease, role, size)
    return lease, ""


def change_shown(before: RankLease, after: RankLease, roles: Collection[RankRole]) -> str:
    """A change of sizes in words."""
    if len(roles) == 1:
        return f"{before.size} -> {after.size} ranks"
    attention = f"{before.size} -> {after.size} attention ranks"
    return f"{attention}, {before.expert_size} -> {after.expert_size} expert ranks"


def switched(lease: RankLease, to: RankRole) -> RankLease:
    """The lease of the same shell with one rank more of a role, and one less of the other."""
    other = RankRole.ATTENTION if to is RankRole.EXPERTS else RankRole.EXPERTS
    smaller = resized(lease, other, lease.of(other)[0] - 1)
    return resized(smaller, to, lease.of(to)[0] + 1)


def shut(lease: RankLease) -> RankLease:
    """The lease of the same shell for a group that shuts down."""
    return replace(lease, term=lease.term + 1, size=0, former=0, expert_size=0, expert_former=0)


def grown(lease: RankLease, ranks: Mapping[int, RankSnapshot], sides: Sequence[GroupSide]) -> RankLease:
    """The lease without growth of those sides that are complete."""
    for side in sides:
        if side.former and whole_sides(ranks, [side]):
            lease = lease.sized(side.role, side.size, 0)
    return lease


def former_size(before: int, former: int, size: int) -> int:
    """Ranks to which a side falls back that is to have another size; 0 = it does not grow.

    Args:
        before: ranks that it was to have until now. former: those to which it would have fallen back then.
        size: ranks that it is to have.
    """
    base = former or before
    return base if size > base else 0


def unbuildable(
    ranks: Mapping[int, RankSnapshot], births: Mapping[int, int], sides: Sequence[GroupSide], most_tries: int
) -> str | None:
    """Why a new group cannot be built; None if no failure is known.

    Args:
        births: processes started for each rank. most_tries: limit of those.
    """
    of = " + ".join(str(side.size) for side in sides)
    for rank, one in sorted(ranks.items()):
        if one.report is not None and one.report.phase is RankPhase.FAILED:
            return f"rank {rank} of {of}: {one.report.problem}"
        if births[rank] > most_tries:
            return f"rank {rank} of {of}: its process ended {most_tries} times"
    return None

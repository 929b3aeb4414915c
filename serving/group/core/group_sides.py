"""The ranks of a group by role: how many of each, their numbers, and which changes of them an operator may request.

ep = 3                              ranks 0, 1, 2             one side, its ranks have both roles
attention_ranks = 2, expert_ranks = 1, most = 8
                                    ranks 0, 1 and 8          two sides; spares follow the ranks of their side
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from serving.values.group import RankLease, RankPhase, RankReport, RankRole
from serving.values.instances import RankPlace

T = TypeVar("T")

COMPUTING = frozenset({RankPhase.SERVING, RankPhase.LEAVING})
BUSY = "the group is not whole, or is being resized: wait until all of its ranks serve"
"""Why a command must wait."""
_KINDS = {RankRole.BOTH: "rank", RankRole.ATTENTION: "attention rank", RankRole.EXPERTS: "expert rank"}


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """State of one rank, as known to its shell.

    Args:
        dead: its process has ended.
        silent_s: time since its last response [s].
        report: its last response; None = it has not responded yet.
    """

    dead: bool = False
    silent_s: float = 0.0
    report: RankReport | None = None


@dataclass(frozen=True, slots=True)
class GroupSide:
    """Target for the ranks of one role, whose numbers are consecutive.

    Args:
        size: ranks that are to compute.
        former: ranks that it had, while it grows; else 0.
        spares: additional ranks, which wait to join.
        first: its lowest rank.
        end: number behind its highest possible rank; None = no side has higher ones.
        role: of its ranks.
    """

    size: int
    former: int = 0
    spares: int = 0
    first: int = 0
    end: int | None = None
    role: RankRole = RankRole.BOTH

    @property
    def full(self) -> int:
        """Number behind the ranks of its size."""
        return self.first + self.size

    @property
    def room(self) -> int:
        """Number behind its spares."""
        return self.full + self.spares

    @property
    def new(self) -> range:
        """Ranks by which it grows."""
        return range(self.first + self.former, self.full) if self.former else range(0)

    @property
    def kind(self) -> str:
        """Word for one of its ranks."""
        return _KINDS[self.role]

    def has(self, rank: int) -> bool:
        """Whether a rank with this number belongs to it."""
        return self.first <= rank and (not self.end or rank < self.end)

    def of(self, ranks: Mapping[int, T]) -> dict[int, T]:
        """The entries of its ranks, in order."""
        return {rank: ranks[rank] for rank in sorted(ranks) if self.has(rank)}


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Possible numbers of ranks of one side of a group.

    Args:
        first: at the start. most: room of its windows.
        redundant: expert slots of a rank in addition to its share.
        spares: ranks in addition to the size, if there is room for them.
    """

    first: int
    most: int
    redundant: int = 0
    spares: int = 0
    role: RankRole = RankRole.BOTH

    @property
    def lowest(self) -> int:
        """Number of its first rank."""
        return self.most if self.role is RankRole.EXPERTS else 0

    @property
    def start(self) -> range:
        """Numbers of its ranks at the start."""
        return range(self.lowest, self.lowest + self.first)

    def has(self, rank: int) -> bool:
        """Whether a rank with this number belongs to the side."""
        return self.lowest <= rank and (self.role is RankRole.BOTH or rank < self.lowest + self.most)

    def side(self, lease: RankLease) -> GroupSide:
        """The side that a lease requests. A group that shuts down has no spares."""
        size, former = lease.of(self.role)
        end = None if self.role is RankRole.BOTH else self.lowest + self.most
        return GroupSide(size, former, self.spares_of(size), self.lowest, end, self.role)

    def spares_of(self, size: int) -> int:
        """Spares of a side of this size; 0 for one that shuts down."""
        return min(self.spares, self.most - size) if size else 0


def first_lease(shell: str, pid: int, term: int, sizes: Iterable[GroupSizes]) -> RankLease:
    """Lease for a new group."""
    lease = RankLease(shell, pid, term)
    for one in sizes:
        lease = lease.sized(one.role, one.first, 0)
    return lease


def rank_place(group: str, rank: int, founder: RankLease, sizes: Sequence[GroupSizes]) -> RankPlace:
    """A rank's place in its group.

    Args:
        founder: lease of the shell that makes the rank.
    """
    own = next(one for one in sizes if one.has(rank))
    room = sum(one.most for one in sizes)
    if own.role is RankRole.BOTH:
        return RankPlace(rank, founder.ranks, room, group)
    index = rank - own.lowest if own.role is RankRole.EXPERTS else None
    return RankPlace(rank, founder.ranks, room, group, own.role, index, founder.expert_size)


def whole_sides(ranks: Mapping[int, RankSnapshot], sides: Iterable[GroupSide]) -> bool:
    """Whether every rank serves or drains; of sides with spares, whether `size` ranks do."""
    serving = {rank: one for rank, one in ranks.items() if one.report and one.report.phase in COMPUTING}
    return all(
        len(side.of(serving)) >= side.size if side.spares else serving.keys() >= set(range(side.first, side.full))
        for side in sides
    )


def wanted_ranks(sides: Iterable[GroupSide]) -> set[int]:
    """Numbers of all ranks that a group has a place for, spares included."""
    return {rank for side in sides for rank in range(side.first, side.room)}


def waiting_spares(ranks: Mapping[int, RankSnapshot], sides: Iterable[GroupSide]) -> list[int]:
    """Spares of complete sides: ranks that have offered and are not members."""
    return [
        rank
        for side in sides
        if side.spares and whole_sides(ranks, [side])
        for rank, one in side.of(ranks).items()
        if one.report and one.report.phase is RankPhase.OFFERED
    ]


# Changes that an operator requests, and why they may be impossible.


def drain_refusal(ranks: Mapping[int, RankSnapshot], sides: Sequence[GroupSide], rank: int) -> str:
    """Why a rank cannot be drained and replaced now; empty if it can."""
    side = next((one for one in sides if one.first <= rank < one.room), None)
    if side is None or (side.spares and rank not in ranks):
        return unknown_rank(sides, rank)
    if side.size == 1:
        what = "its experts" if side.role is RankRole.EXPERTS else "its streams"
        return f"it is the only {side.kind}: no other one could take {what}"
    if side.spares and _phase(ranks[rank]) is not RankPhase.SERVING:
        return f"rank {rank} is a spare: it has no streams"
    return "" if _settled(ranks, side) else BUSY


def resize_refusal(size: int, sizes: GroupSizes, experts: int) -> str:
    """Why a side cannot have this number of ranks; empty if it can.

    Args:
        experts: of a layer.
    """
    ranks = f"{size} {_KINDS[sizes.role]}s"
    if not 1 <= size <= sizes.most:
        return f"{ranks}: give 1 to {sizes.most}; [experts] most_ranks sets the most"
    if sizes.role.has_experts and size > experts and not sizes.redundant:
        return f"{ranks}, but a layer has {experts} experts: some would hold none; [experts] redundant gives each one"
    return ""


def experts_of(ranks: Mapping[int, RankSnapshot]) -> int:
    """Experts of a layer, as the ranks report; 0 = not known yet."""
    offers = [one.report.offer for one in ranks.values() if one.report is not None and one.report.offer is not None]
    return max((one.experts for one in offers), default=0)


def switch_refusal(ranks: Mapping[int, RankSnapshot], sides: Sequence[GroupSide], rank: int, role: RankRole) -> str:
    """Why a rank cannot be replaced with one of another role now; empty if it can, if that role has room for it."""
    if len(sides) == 1:
        return "the ranks of this group have both roles: only attention_ranks and expert_ranks can be switched"
    side = next((one for one in sides if rank in one.of(ranks)), None)
    if side is None:
        return unknown_rank(sides, rank)
    if side.role is role:
        return f"rank {rank} is an {side.kind} already"
    if side.size == 1:
        return f"it is the only {side.kind}: the group needs one"
    if not all(_settled(ranks, one) for one in sides):
        return BUSY
    last = max(one for one, seen in side.of(ranks).items() if _phase(seen) is RankPhase.SERVING)
    return "" if rank == last else f"rank {rank} is not the last {side.kind}: switch rank {last}"


def unknown_rank(sides: Sequence[GroupSide], rank: int) -> str:
    """Why a command about a rank cannot be carried out that the group does not have."""
    named = " and ".join(f"{side.first} to {side.room - 1}" for side in sides)
    return f"there is no rank {rank}: the group's are {named}"


def _settled(ranks: Mapping[int, RankSnapshot], side: GroupSide) -> bool:
    """Whether all ranks of a side serve, and it has no others but spares."""
    own = side.of(ranks)
    serving = {rank for rank, seen in own.items() if _phase(seen) is RankPhase.SERVING}
    return len(serving) == side.size if side.spares else serving == set(own) == set(range(side.first, side.full))


def _phase(seen: RankSnapshot) -> RankPhase | None:
    return seen.report.phase if seen.report is not None else None

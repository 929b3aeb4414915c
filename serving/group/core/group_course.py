"""A shell's decisions: what it does to make its group whole and keep it so.

    absent ── Make ──► loading ──► offered ── Regroup, at first once all have offered ──► serving
       ▲                                                                          │
       └───────── Kill: its process is dead, frozen, failed or stalled ◄──────────┤
                                                                                  │
    absent ◄─ Dismiss ── left: Regroup without it ◄── leaving ◄── BeginDrain ─────┘

Ranks compute together. When one is lost, the others are regrouped without it at once, redo the step that they were in,
and compute its experts, too; its replacement joins at another regrouping. Only when none is left is it begun anew.

A group that is to be larger gets more ranks behind those that it has, which join at one regrouping when all of them
have offered. In one that is to be smaller the last ranks drain; the others are regrouped without them, and then they
end. So does a single rank that is to be replaced without a loss. Ranks' phases tell any shell where a change is.

Spares are ranks that have offered and are no members: as soon as fewer than `size` serve, the first of them joins under
its own number. The lost rank's number is given to the next spare. So members need not be the ranks 0 to size - 1.

Ranks with attention and ranks with experts are two sides, each with its own size and numbers, in one epoch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from serving.values.group import RankOffer, RankPhase, RankReport, RankRole
from serving.values.health import silent_too_long
from serving.values.rank_losses import LossKind

T = TypeVar("T")

LONGEST_AGE_S = 1e9
"""Reported in place of an infinite age: the engine has crashed, or its group is broken."""
FRESH_S = 1.5
"""What a rank said of its peers is believed for so long: one that is frozen, too, says nothing new."""
_COMPUTING = frozenset({RankPhase.SERVING, RankPhase.LEAVING})
_NOT_BEGUN = frozenset({RankPhase.LOADING, RankPhase.OFFERED})


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Numbers of ranks that a group may have.

    Args:
        first: as it begins. most: that its windows have room for.
        redundant: expert slots of a rank beside its share.
        spares: ranks beside those of the size, if there is room for them.
    """

    first: int
    most: int
    redundant: int = 0
    spares: int = 0

    def spares_of(self, size: int) -> int:
        """Spares of a group of some size; one that ends has none."""
        return min(self.spares, self.most - size) if size else 0

    def room_of(self, size: int) -> int:
        """Ranks of such a group, spares included."""
        return size + self.spares_of(size)


@dataclass(frozen=True, slots=True)
class GroupSide:
    """Target for the ranks of one role, whose numbers are consecutive.

    Args:
        size: ranks that are to compute.
        former: ranks that it had, while it grows; else 0.
        spares: ranks beside those, which wait to join.
        first: its lowest rank.
        end: number behind its highest possible rank; None = no side has higher ones.
    """

    size: int
    former: int = 0
    spares: int = 0
    first: int = 0
    end: int | None = None

    @property
    def full(self) -> int:
        """Number behind the ranks of its size."""
        return self.first + self.size

    @property
    def room(self) -> int:
        """Number behind its spares."""
        return self.full + self.spares

    def of(self, ranks: Mapping[int, T]) -> dict[int, T]:
        """The entries of its ranks, in order."""
        return {rank: ranks[rank] for rank in sorted(ranks) if self.first <= rank and (not self.end or rank < self.end)}


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """One rank as its shell sees it.

    Args:
        dead: its process has ended.
        silent_s: how long it has not answered [s].
        report: its last answer; None = there was none yet.
    """

    dead: bool = False
    silent_s: float = 0.0
    report: RankReport | None = None


@dataclass(frozen=True, slots=True)
class Make:
    """Start a process for a rank that has none.

    Args:
        gently: at low priority, since the group computes and lacks nobody.
    """

    rank: int
    gently: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Kill:
    """End a rank's process, whatever it does. It is absent from then on.

    Args:
        reason: in words. kind: the same, for counters.
    """

    rank: int
    reason: str
    kind: LossKind = field(default=LossKind.DEAD, compare=False)


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Have a rank hand on its streams, and then leave."""

    rank: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """End a rank's process that computes with nobody: it has left, or never began. It is absent from then on."""

    rank: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """Have the members compute together from a new epoch on, once those that were killed before are dead for certain.

    Those that do not serve yet begin to.

    Args:
        epoch: higher than that of any rank. version: that the map has at least, higher than any rank was given.
        members: what they offer.
        left: ranks that have drained: they stop when all members have been told, before the epoch begins.
    """

    epoch: int
    version: int
    members: tuple[RankOffer, ...]
    left: tuple[int, ...] = ()


GroupOrder = Make | Kill | BeginDrain | Dismiss | Regroup


def mend(
    ranks: Mapping[int, RankSnapshot],
    size: int,
    silence_s: float,
    *,
    former: int = 0,
    spares: int = 0,
    anew: bool = False,
) -> list[GroupOrder]:
    """Orders that make the group whole, or keep it so. Ask again after they are carried out, and now and then.

    Args:
        ranks: those that have a process, or had one when last looked at, by number.
        size: ranks of the group.
        silence_s: a rank that does not answer for longer is frozen [s].
        former: ranks that it had, while it grows; else 0.
        spares: ranks beside those, which wait to join.
        anew: those that serve are to be regrouped although nothing has changed.
    Returns: orders; none while everything is as it should be or comes by itself.
    """
    return mend_sides(ranks, [GroupSide(size, former, spares)], silence_s, anew=anew)


def mend_sides(
    ranks: Mapping[int, RankSnapshot], sides: Sequence[GroupSide], silence_s: float, *, anew: bool = False
) -> list[GroupOrder]:
    """As `mend`, for a group whose ranks have different roles: each side is made whole by ranks of its own.

    A side of which no rank computes keeps the others in their epoch until one of its ranks has offered.

    Args:
        sides: one for each role, in order of their ranks.
    """
    late = _late(ranks)
    lost = {rank: why for rank, sight in sorted(ranks.items()) if (why := _loss(sight, silence_s) or late.get(rank))}
    there = {rank: sight.report for rank, sight in sorted(ranks.items()) if rank not in lost}
    phases = {rank: report.phase if report is not None else RankPhase.LOADING for rank, report in there.items()}
    orders: list[GroupOrder] = [Kill(rank, why, kind) for rank, (kind, why) in lost.items()]
    for side in sides:
        own = side.of(phases)
        orders += [BeginDrain(rank) for rank in _too_many(own, side)]
        orders += [Dismiss(rank) for rank, phase in own.items() if rank >= side.room and phase in _NOT_BEGUN]
    left = tuple(rank for rank, phase in phases.items() if phase is RankPhase.LEFT)
    coming = {side for side in sides if _is_coming(ranks, side)}
    due = _regroup(there, sides, left, coming=coming, anew=anew)
    orders += [due] if due is not None else [Dismiss(rank) for rank in left]
    well = whole_sides(ranks, sides)
    newcomers = [(rank, 0 < one.former <= rank - one.first) for one in sides for rank in _absent(one.of(ranks), one)]
    return orders + [Make(rank, gently=well or new) for rank, new in newcomers]


def _too_many(phases: Mapping[int, RankPhase], side: GroupSide) -> list[int]:
    """Ranks that serve and are to leave: the last ones."""
    serving = [rank for rank, phase in phases.items() if phase is RankPhase.SERVING]
    if not side.spares:
        return [rank for rank in serving if rank >= side.full]
    stay = [rank for rank in serving if rank < side.room][: side.size]
    return [rank for rank in serving if rank not in stay]


def _is_coming(ranks: Mapping[int, RankSnapshot], side: GroupSide) -> bool:
    """Whether a side grows, and some newcomer has not reported yet."""
    new = range(side.first + side.former, side.full)
    return side.former > 0 and any(rank not in ranks or ranks[rank].report is None for rank in new)


def _absent(ranks: Mapping[int, RankSnapshot], side: GroupSide) -> list[int]:
    """Ranks whose processes are to start: all at once, but newcomers to a group that computes one by one, since the
    start of a process takes the processor from those that compute. Spares come last.
    """
    first_new = side.first + (side.former or side.size)
    absent = [rank for rank in range(side.first, side.room) if rank not in ranks]
    lost = [rank for rank in absent if rank < first_new]
    new = [rank for rank in absent if rank >= first_new]
    starts = any(rank >= first_new and one.report is None and not one.dead for rank, one in ranks.items())
    wait = starts or (not side.former and not whole_sides(ranks, [side]))
    return lost + ([] if wait else new[:1])


def whole(ranks: Mapping[int, RankSnapshot], size: int, spares: int = 0) -> bool:
    """Whether every rank serves, or is about to be replaced without a loss; with spares, whether as many do."""
    return whole_sides(ranks, [GroupSide(size, spares=spares)])


def whole_sides(ranks: Mapping[int, RankSnapshot], sides: Iterable[GroupSide]) -> bool:
    """As `whole`, for each side."""
    serving = {rank: one for rank, one in ranks.items() if one.report and one.report.phase in _COMPUTING}
    return all(
        len(side.of(serving)) >= side.size if side.spares else serving.keys() >= set(range(side.first, side.full))
        for side in sides
    )


def drain_refusal(ranks: Mapping[int, RankSnapshot], size: int, rank: int, spares: int = 0) -> str:
    """Why a rank cannot be drained and replaced now; empty = it can."""
    if not 0 <= rank < size + spares or (spares and rank not in ranks):
        return f"there is no rank {rank}: the group's are 0 to {size + spares - 1}"
    if size == 1:
        return "it is the only rank: no other one could take its streams"
    phases = {one: sight.report.phase if sight.report is not None else None for one, sight in ranks.items()}
    if spares and phases[rank] is not RankPhase.SERVING:
        return f"rank {rank} is a spare: it has no streams"
    serving = {one for one, phase in phases.items() if phase is RankPhase.SERVING}
    well = len(serving) == size if spares else serving == set(phases) == set(range(size))
    if not well:
        return "the group is not whole, or is being resized: wait until all of its ranks serve"
    return ""


def resize_refusal(size: int, sizes: GroupSizes, experts: int, role: RankRole = RankRole.BOTH) -> str:
    """Why a group cannot have so many ranks of a role; empty = it can.

    Args:
        sizes: of that role.
        experts: of a layer.
    """
    if not 1 <= size <= sizes.most:
        return f"{size} ranks: give 1 to {sizes.most}; [experts] most_ranks sets the most"
    if role.has_experts and size > experts and not sizes.redundant:
        return (
            f"{size} ranks, but a layer has {experts} experts: some would hold none; [experts] redundant gives each one"
        )
    return ""


def waiting_spares(ranks: Mapping[int, RankSnapshot], size: int, spares: int) -> list[int]:
    """Ranks that have offered and are no members, of a group that is whole."""
    if not spares or not whole(ranks, size, spares):
        return []
    return [rank for rank, one in sorted(ranks.items()) if one.report and one.report.phase is RankPhase.OFFERED]


def unbuildable(ranks: Mapping[int, RankSnapshot], births: Mapping[int, int], size: int, most_tries: int) -> str | None:
    """Why a new group cannot be built; None = it can, as far as it is known.

    Args:
        births: processes that each rank has had. most_tries: that it may have.
    """
    for rank, one in sorted(ranks.items()):
        if one.report is not None and one.report.phase is RankPhase.FAILED:
            return f"rank {rank} of {size}: {one.report.problem}"
        if births[rank] > most_tries:
            return f"rank {rank} of {size}: its process ended {most_tries} times"
    return None


def _regroup(
    there: Mapping[int, RankReport | None],
    sides: Sequence[GroupSide],
    left: tuple[int, ...],
    *,
    coming: Collection[GroupSide],
    anew: bool,
) -> Regroup | None:
    """The regrouping that is due, if any: to those that compute, and those that wait to, without those that have left.

    Before the first one all must be there.

    Args:
        coming: sides with newcomers that are about to start.
    """
    reports = {rank: one for rank, one in there.items() if one is not None}
    computing = {rank: one for rank, one in reports.items() if one.phase in _COMPUTING}
    new: dict[int, RankReport] = {}
    for side in sides:
        joining = _joining(side.of(reports), side, begun=bool(computing), coming=side in coming)
        missing = not joining and not side.of(computing)
        if side.size and (len(joining) < side.size if not computing else missing):
            return None
        new |= joining
    members = dict(sorted((computing | new).items()))
    pids = tuple(one.pid for one in members.values())
    if not new and not anew and all(one.members == pids and one.raised == one.epoch for one in computing.values()):
        return None
    epoch = 1 + max(max(one.epoch, one.raised) for one in computing.values()) if computing else 1
    version = 1 + max((one.version for one in computing.values()), default=0)
    return Regroup(epoch, version, tuple(one.offer for one in members.values() if one.offer is not None), left)


def _joining(reports: Mapping[int, RankReport], side: GroupSide, *, begun: bool, coming: bool) -> dict[int, RankReport]:
    """Ranks of a side that join at a regrouping: those that have offered, but not while others of them are being built
    or about to start, since each regrouping costs a moment. With spares, the first ones join where others are missing.

    Args:
        begun: whether the group computes.
    """
    serving = sum(one.phase is RankPhase.SERVING for one in reports.values())
    offered = [rank for rank, one in reports.items() if rank < side.room and one.phase is RankPhase.OFFERED]
    room = side.size - serving if side.spares else side.size
    new = {rank: reports[rank] for rank in offered[: max(0, room)] if side.spares or rank < side.full}
    if not begun or (side.spares and len(new) >= room):
        return new
    waits = any(rank < side.full and one.phase is RankPhase.LOADING for rank, one in reports.items())
    return {} if coming or (waits and not side.spares) else new


def _late(ranks: Mapping[int, RankSnapshot]) -> dict[int, tuple[LossKind, str]]:
    """Ranks that keep their peers waiting for longer than a step may take, and wait for nobody themselves: of a chain
    of ranks that wait for each other only the last one is to blame.
    """
    waiting = {
        rank: sight.report.late_peer
        for rank, sight in ranks.items()
        if sight.report is not None and sight.report.late_peer is not None and sight.silent_s < FRESH_S
    }
    late = {peer: rank for rank, peer in waiting.items() if peer not in waiting}
    return {peer: (LossKind.LATE, f"keeps rank {rank} waiting") for peer, rank in late.items()}


def _loss(sight: RankSnapshot, silence_s: float) -> tuple[LossKind, str] | None:
    """Why a rank must be replaced; None = it need not."""
    report = sight.report
    if sight.dead:
        return LossKind.DEAD, "has ended"
    if silent_too_long(sight.silent_s, silence_s):
        return LossKind.SILENT, f"has not answered for {sight.silent_s:.0f} s"
    if report is None:
        return None
    if report.phase is RankPhase.FAILED:
        return LossKind.UNBUILT, f"could not be built: {report.problem}"
    if report.stalled_s >= LONGEST_AGE_S:
        return LossKind.BROKEN, "cannot compute any more"
    if report.stalled_s:
        return LossKind.STALLED, f"has had work for {report.stalled_s:.1f} s without making a step"
    return None

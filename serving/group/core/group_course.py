"""Decisions of a shell: what completes its group of ranks and keeps it complete.

    absent ── Make ──► loading ──► offered ── Regroup, at first once all have offered ──► serving
       ▲                                                                          │
       └───────── Kill: its process is dead, frozen, failed or stalled ◄──────────┤
                                                                                  │
    absent ◄─ Dismiss ── left: Regroup without it ◄── leaving ◄── BeginDrain ─────┘

Ranks compute together. When a rank is lost, the other ranks are regrouped without it immediately, redo their current
step, and compute its experts too; its replacement joins at a later regrouping. The group starts over only when no rank
is left.

A group that grows gets ranks with higher numbers, which join at one regrouping when all of them have offered. When a
group shrinks, its last ranks drain, the others are regrouped without them, and the drained ranks end. A rank that is
replaced without a loss drains in the same way. The phases of the ranks show the progress of a change to any shell.

Spares are ranks that have offered and are not members: when fewer than `size` ranks serve, the first spare joins under
its own number, and the number of the lost rank is given to the next spare. So members need not be the ranks 0 to
size - 1.

A connection between two nodes that ends is a loss at one of its ends: the one that the shell does not hear, or if it
hears both, the one whose node does not have the lowest rank. The end of the connection fences it; so if each
remaining rank is on another node and has reported that end, they continue before Ray has confirmed that it is dead.

Ranks with attention and ranks with experts are two sides, each with its own size and numbers, in one epoch. Attention
ranks compute with expert ranks only: when attention ranks join, leave or are lost, the others follow the new members in
the same epoch, and redo nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.group.core.group_sides import COMPUTING, GroupSide, RankSnapshot, whole_sides
from serving.values.group import LossKind, RankOffer, RankPhase, RankReport, RankRole
from serving.values.health import silent_too_long

LONGEST_AGE_S = 1e9
"""Reported in place of an infinite age: the engine has crashed, or its group is broken."""
FRESH_S = 1.5
"""How long the report of a rank about its peers is trusted [s]: a frozen rank sends no newer report."""
UNHEARD_S = 0.75
"""A rank that answered its shell less than so long ago is heard [s]: longer than between two renewals of its lease."""
_NOT_BEGUN = frozenset({RankPhase.LOADING, RankPhase.OFFERED})


@dataclass(frozen=True, slots=True)
class Make:
    """Start a process for a rank that has none.

    Args:
        gently: at low priority, since the group computes and lacks no rank.
    """

    rank: int
    gently: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a rank's process. The rank is absent afterwards.

    Args:
        reason: for the log. kind: for counters.
        fenced: the ranks that go on need not wait for its end, since it can write into none of their windows.
    """

    rank: int
    reason: str
    kind: LossKind = field(default=LossKind.DEAD, compare=False)
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Have a rank move its streams to other ranks, then leave."""

    rank: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """End the process of a rank that has left or has not started to serve. The rank is absent afterwards."""

    rank: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """Have the members compute together from a new epoch on, after killed ranks are confirmed dead.

    Members that do not serve yet start to serve.

    Args:
        epoch: higher than that of any rank. version: least version of the map, higher than any rank has received.
        members: their offers.
        left: drained ranks, which stop after all members have received the order, before the epoch starts.
        keeps_epoch: only attention ranks have changed: `epoch` is the present one, whose map stays.
        lacks_rank: a side has fewer ranks with experts than its size, and none has left: one was lost.
    """

    epoch: int
    version: int
    members: tuple[RankOffer, ...]
    left: tuple[int, ...] = ()
    keeps_epoch: bool = False
    lacks_rank: bool = field(default=False, compare=False)


GroupOrder = Make | Kill | BeginDrain | Dismiss | Regroup


def mend_sides(
    ranks: Mapping[int, RankSnapshot], sides: Sequence[GroupSide], silence_s: float, *, anew: bool = False
) -> list[GroupOrder]:
    """Orders that complete the group. Call it again after they are carried out, and periodically.

    A side of which no rank computes keeps the others in their epoch until one of its ranks has offered.

    Args:
        ranks: ranks with a process, or with one at the last check, by number.
        sides: one for each role, in order of their ranks.
        silence_s: a rank that does not respond for longer is frozen [s].
        anew: regroup the serving ranks even if nothing has changed.
    Returns: orders; empty while the group is complete or only has to wait.
    """
    found = _late(ranks) | _unreachable(ranks)
    lost = {rank: why for rank, sight in sorted(ranks.items()) if (why := _loss(sight, silence_s) or found.get(rank))}
    there = {rank: sight.report for rank, sight in sorted(ranks.items()) if rank not in lost}
    phases = {rank: report.phase if report is not None else RankPhase.LOADING for rank, report in there.items()}
    orders: list[GroupOrder] = [
        Kill(rank, why, kind, fenced=_is_fenced(ranks[rank].report, there.values()))
        for rank, (kind, why) in lost.items()
    ]
    awaited = _awaited(there.values())
    for side in sides:
        own = side.of(phases)
        orders += [BeginDrain(rank) for rank in _too_many(own, side)]
        surplus = [rank for rank, phase in own.items() if rank >= side.room and phase in _NOT_BEGUN]
        orders += [Dismiss(rank) for rank in surplus if (one := there[rank]) is None or one.pid not in awaited]
    left = tuple(rank for rank, phase in phases.items() if phase is RankPhase.LEFT)
    coming = {side for side in sides if _is_coming(ranks, side)}
    due = _regroup(there, sides, left, coming=coming, anew=anew)
    orders += [due] if due is not None else [Dismiss(rank) for rank in left]
    well = whole_sides(ranks, sides)
    newcomers = [(rank, 0 < one.former <= rank - one.first) for one in sides for rank in _absent(one.of(ranks), one)]
    return orders + [Make(rank, gently=well or new) for rank, new in newcomers]


def _awaited(reports: Iterable[RankReport | None]) -> set[int]:
    """Processes that a computing rank counts as members: some may not have received that order, if a shell died while
    it sent it, and are dismissed only after a regrouping without them."""
    return {pid for one in reports if one is not None and one.phase in COMPUTING for pid in one.members}


def _too_many(phases: Mapping[int, RankPhase], side: GroupSide) -> list[int]:
    """Surplus ranks, which are to drain: the last serving ones."""
    serving = [rank for rank, phase in phases.items() if phase is RankPhase.SERVING]
    if not side.spares:
        return [rank for rank in serving if rank >= side.full]
    stay = [rank for rank in serving if rank < side.room][: side.size]
    return [rank for rank in serving if rank not in stay]


def _is_coming(ranks: Mapping[int, RankSnapshot], side: GroupSide) -> bool:
    """Whether a side grows, and some newcomer has not reported yet."""
    return any(rank not in ranks or ranks[rank].report is None for rank in side.new)


def _absent(ranks: Mapping[int, RankSnapshot], side: GroupSide) -> list[int]:
    """Ranks whose processes are to start: all at once, but newcomers of a computing group one after the other, since
    starting a process takes CPU time from computing ranks. Spares start last.
    """
    first_new = side.first + (side.former or side.size)
    absent = [rank for rank in range(side.first, side.room) if rank not in ranks]
    lost = [rank for rank in absent if rank < first_new]
    new = [rank for rank in absent if rank >= first_new]
    starts = any(rank >= first_new and one.report is None and not one.dead for rank, one in ranks.items())
    wait = starts or (not side.former and not whole_sides(ranks, [side]))
    return lost + ([] if wait else new[:1])


def _regroup(
    there: Mapping[int, RankReport | None],
    sides: Sequence[GroupSide],
    left: tuple[int, ...],
    *,
    coming: Collection[GroupSide],
    anew: bool,
) -> Regroup | None:
    """The regrouping that is due, if any: of computing ranks and ranks that can join, without ranks that have left.

    The first regrouping needs all ranks.

    Args:
        coming: sides with newcomers that are about to start.
    """
    reports = {rank: one for rank, one in there.items() if one is not None}
    computing = {rank: one for rank, one in reports.items() if one.phase in COMPUTING}
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
    offers = tuple(one.offer for one in members.values() if one.offer is not None)
    version = max((one.version for one in computing.values()), default=0)
    kept = _kept_epoch(computing.values(), tuple(one.pid for one in offers if one.role.has_experts))
    if kept and not anew and not any(one.offer and one.offer.role.has_experts for one in new.values()):
        return Regroup(kept, version, offers, left, keeps_epoch=True)
    epoch = 1 + max((max(one.epoch, one.raised) for one in computing.values()), default=0)
    with_experts = [side for side in sides if side.role.has_experts]
    lacks = not left and any(len(side.of(members)) < (side.former or side.size) for side in with_experts)
    return Regroup(epoch, version + 1, offers, left, lacks_rank=lacks)


def _kept_epoch(computing: Collection[RankReport], experts: tuple[int, ...]) -> int:
    """The epoch in which all ranks are and can stay, since it has the same processes with experts; 0 = there is none.

    Attention ranks may still have to start it.

    Args:
        experts: processes of the next members with experts, by rank.
    """
    epochs = {one.epoch for one in computing}
    if len(epochs) != 1 or any(one.experts != experts or one.raised > one.epoch for one in computing):
        return 0
    return 0 if any(one.raised < one.epoch for one in computing if one.pid in experts) else max(epochs)


def _joining(reports: Mapping[int, RankReport], side: GroupSide, *, begun: bool, coming: bool) -> dict[int, RankReport]:
    """Ranks of a side that join at a regrouping: those that have offered, but not while other newcomers are being built
    or about to start, since each regrouping pauses the group. With spares, the first ones replace missing members.

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
    """Ranks for which peers wait longer than a step may take, and which do not wait for a peer themselves: in a chain
    of waiting ranks only the last one is replaced.
    """
    waiting = {
        rank: sight.report.late_peer
        for rank, sight in ranks.items()
        if sight.report is not None and sight.report.late_peer is not None and sight.silent_s < FRESH_S
    }
    late = {peer: rank for rank, peer in waiting.items() if peer not in waiting}
    return {peer: (LossKind.LATE, f"keeps rank {rank} waiting") for peer, rank in late.items()}


def _unreachable(ranks: Mapping[int, RankSnapshot]) -> dict[int, tuple[LossKind, str]]:
    """Ranks that are lost because connections to them have ended, and ranks of the same nodes that are not heard
    either: peers of their own node only cannot report them.
    """
    reports = {rank: one.report for rank, one in sorted(ranks.items()) if one.report is not None and not one.dead}
    heard = [rank for rank in reports if ranks[rank].silent_s < UNHEARD_S]
    lowest: dict[str, int] = {}
    for rank, one in reports.items():
        lowest.setdefault(one.node, rank)
    lost = {}
    for rank in heard:
        members = reports[rank].members
        for peer in reports[rank].unreachable:
            known = peer in reports and reports[peer].pid in members  # else it was replaced meanwhile
            if known and (peer not in heard or lowest[reports[rank].node] < lowest[reports[peer].node]):
                lost[peer] = LossKind.UNREACHABLE, f"cannot be reached by rank {rank}"
    nodes = {reports[rank].node for rank in lost if rank not in heard}
    with_them = (rank for rank, one in reports.items() if one.node in nodes and rank not in heard)
    return {rank: (LossKind.UNREACHABLE, "is on a node that cannot be reached") for rank in with_them} | lost


def _is_fenced(lost: RankReport | None, stays: Iterable[RankReport | None]) -> bool:
    """Whether a lost rank can write into no window of a remaining rank."""
    if lost is None or lost.offer is None:
        return False
    own, peers = lost.offer.role, [one for one in stays if one is not None and one.phase in COMPUTING and one.offer]
    meet = [one for one in peers if one.offer and (one.offer.role is not own or own is RankRole.BOTH)]
    ended = all(lost.offer.rank in one.unreachable for one in meet)
    return bool(meet) and ended and all(one.node != lost.node for one in peers)


def _loss(sight: RankSnapshot, silence_s: float) -> tuple[LossKind, str] | None:
    """Why a rank must be replaced; None if it need not be."""
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

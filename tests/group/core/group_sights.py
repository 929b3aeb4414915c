"""Ranks from a shell's point of view."""

from collections.abc import Mapping

from serving.group.core import group_sides
from serving.group.core.group_course import GroupOrder, mend_sides
from serving.group.core.group_sides import GroupSide, RankSnapshot, whole_sides
from serving.values.group import RankLease, RankOffer, RankPhase, RankReport, RankRole, RegroupOrder
from tests.fakes.rank_group import ordered, progress

SILENCE_S = 15.0
LEASE = RankLease("abc", 1, 1)


def report(
    rank: int,
    phase: RankPhase,
    pid: int = 0,
    order: RegroupOrder | None = None,
    raised: int = 0,
    stalled_s: float = 0.0,
    role: RankRole = RankRole.BOTH,
) -> RankReport:
    offered = phase not in (RankPhase.LOADING, RankPhase.FAILED)
    offer = RankOffer(rank, pid, "", "x", role=role) if offered else None
    problem = "no room" * (phase is RankPhase.FAILED)
    experts = order.processes(with_experts=True) if order is not None else ()
    told = progress(order, raised)
    return RankReport(LEASE, phase, pid, "n", offer, *told, stalled_s=stalled_s, problem=problem, experts=experts)


# Groups whose ranks have both roles.


def mend(
    ranks: Mapping[int, RankSnapshot], size: int, silence_s: float, *, former: int = 0, spares: int = 0
) -> list[GroupOrder]:
    return mend_sides(ranks, [GroupSide(size, former, spares)], silence_s)


def whole(ranks: Mapping[int, RankSnapshot], size: int) -> bool:
    return whole_sides(ranks, [GroupSide(size)])


def drain_refusal(ranks: Mapping[int, RankSnapshot], size: int, rank: int, spares: int = 0) -> str:
    return group_sides.drain_refusal(ranks, [GroupSide(size, spares=spares)], rank)


def waiting_spares(ranks: Mapping[int, RankSnapshot], size: int, spares: int) -> list[int]:
    return group_sides.waiting_spares(ranks, [GroupSide(size, spares=spares)])


def sights(*phases: RankPhase) -> dict[int, RankSnapshot]:
    """Snapshots of ranks; the serving ones are in the first epoch."""
    order = first_order(len(phases))
    serving = RankPhase.SERVING
    return {
        n: RankSnapshot(report=report(n, phase, n, *((order, 1) if phase is serving else (None, 0))))
        for n, phase in enumerate(phases)
    }


def first_order(size: int) -> RegroupOrder:
    return ordered(1, 1, tuple(RankOffer(rank, rank, "", "x") for rank in range(size)))

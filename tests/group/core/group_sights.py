"""Ranks from a shell's point of view."""

from serving.group.core.group_course import RankSnapshot
from serving.values.group import RankLease, RankOffer, RankPhase, RankReport, RegroupOrder
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
) -> RankReport:
    offered = phase not in (RankPhase.LOADING, RankPhase.FAILED)
    offer = RankOffer(rank, pid, "", "x") if offered else None
    problem = "no room" * (phase is RankPhase.FAILED)
    return RankReport(LEASE, phase, pid, "n", offer, *progress(order, raised), stalled_s=stalled_s, problem=problem)


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

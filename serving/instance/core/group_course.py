"""A shell's decisions: which group it takes over, and what it does to make its own group whole and keep it so.

    absent ── Make ──► loading ──► offered ── Start, once all have offered ──► serving
       ▲                                                                          │
       └───────── Kill: its process is dead, frozen, failed or stalled ◄──────────┘

Ranks that compute alone are replaced one by one. Ranks that compute together cannot go on without one of them: the
whole group is begun anew. The gateways resume what was there elsewhere, or here a moment later.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from serving.values.group import RankOffer, RankPhase, RankReport

_STARTED = frozenset({RankPhase.SERVING, RankPhase.LEAVING, RankPhase.LEFT})


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group that some shell has made.

    Args:
        shell: that holds it, or made it if no rank says more.
        leaving: it drains, and ends.
    """

    name: str
    shell: str
    term: int = 1
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class RankSight:
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
    """Start a process for a rank that has none."""

    rank: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a rank's process, whatever it does. It is absent from then on."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Let a rank join its peers and serve."""

    rank: int
    offers: tuple[RankOffer, ...]


GroupOrder = Make | Kill | Start


def orphan(groups: Iterable[SeenGroup], shells: Collection[str]) -> SeenGroup | None:
    """The group that a new shell takes over: one whose shell does not exist any more, and that does not leave.

    Args:
        shells: that exist, the asker apart, which has none yet.
    Effects: none.
    """
    lost = [one for one in groups if one.shell not in shells and not one.leaving]
    return min(lost, key=lambda one: one.name, default=None)


def abandoned(places: Collection[str], groups: Collection[str], shells: Collection[str]) -> list[str]:
    """Groups that have a place and no ranks, and that the shell which made them does not look after: a node was lost
    with all of them, and Ray keeps the place for ever.

    A shell that took such a group over, and is about to make its ranks anew, makes the place anew as well.

    Args:
        places: names of groups that have a place. groups: of those that have ranks. shells: that exist.
    Effects: none.
    """
    return sorted(name for name in places if name not in groups and name.partition("#")[2] not in shells)


def mend(ranks: Mapping[int, RankSight], size: int, silence_s: float) -> list[GroupOrder]:
    """Orders that make the group whole, or keep it so. Ask again after they are carried out, and now and then.

    Args:
        ranks: those that have a process, or had one when last looked at, by number.
        size: ranks of the group.
        silence_s: a rank that does not answer for longer is frozen [s].
    Returns: orders; none while everything is as it should be or comes by itself.
    Effects: none.
    """
    lost = {rank: why for rank, sight in sorted(ranks.items()) if (why := _loss(sight, silence_s))}
    if lost and _together(ranks):
        first, why = next(iter(lost.items()))
        return [Kill(rank, lost.get(rank, f"rank {first} {why}")) for rank in sorted(ranks)]
    orders: list[GroupOrder] = [Kill(rank, why) for rank, why in lost.items()]
    orders += [Make(rank) for rank in range(size) if rank not in ranks]
    return orders or _starts(ranks, size)


def whole(ranks: Mapping[int, RankSight], size: int) -> bool:
    """Whether every rank serves. Effects: none."""
    serving = [rank for rank, sight in ranks.items() if sight.report and sight.report.phase is RankPhase.SERVING]
    return len(serving) == size


def _starts(ranks: Mapping[int, RankSight], size: int) -> list[GroupOrder]:
    """Starts, once all have offered: a rank that joins later is given the offers of those that serve, too."""
    reports = [ranks[rank].report for rank in range(size)]
    offers = tuple(report.offer for report in reports if report is not None and report.offer is not None)
    if len(offers) < size:
        return []
    waiting = [rank for rank, one in enumerate(reports) if one is not None and one.phase is RankPhase.OFFERED]
    return [Start(rank, offers) for rank in waiting]


def _loss(sight: RankSight, silence_s: float) -> str:
    """Why a rank must be replaced; empty = it need not."""
    report = sight.report
    if sight.dead:
        return "has ended"
    if sight.silent_s > silence_s:
        return f"has not answered for {sight.silent_s:.0f} s"
    if report is None:
        return ""
    if report.phase is RankPhase.FAILED:
        return f"could not be built: {report.problem}"
    if report.stalled_s:
        return f"has had work for {report.stalled_s:.1f} s without making a step"
    return ""


def _together(ranks: Mapping[int, RankSight]) -> bool:
    """Whether these ranks have begun to compute with each other."""
    reports = [sight.report for sight in ranks.values() if sight.report is not None]
    return any(report.together and report.phase in _STARTED for report in reports)

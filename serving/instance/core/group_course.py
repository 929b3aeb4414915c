"""A shell's decisions: which group it takes over, and what it does to make its own group whole and keep it so.

    absent ── Make ──► loading ──► offered ── Regroup, at first once all have offered ──► serving
       ▲                                                                          │
       └───────── Kill: its process is dead, frozen, failed or stalled ◄──────────┘

Ranks compute together. When one is lost, the others are regrouped without it at once, redo the step that they were in,
and compute its experts, too; its replacement joins at another regrouping. Only when none is left is it begun anew.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from serving.values.group import RankOffer, RankPhase, RankReport

LONGEST_AGE_S = 1e9
"""Reported in place of an infinite age: the engine has crashed, or its group is broken."""
FRESH_S = 1.5
"""What a rank said of its peers is believed for so long: one that is frozen, too, says nothing new."""
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
class Regroup:
    """Have the members compute together from a new epoch on, once those that were killed before are dead for certain.

    Those that do not serve yet begin to.

    Args:
        epoch: higher than that of any rank. version: that the map has at least, higher than any rank was given.
        members: what they offer.
    """

    epoch: int
    version: int
    members: tuple[RankOffer, ...]


GroupOrder = Make | Kill | Regroup


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
    late = _late(ranks)
    lost = {
        rank: why for rank, sight in sorted(ranks.items()) if (why := _loss(sight, silence_s) or late.get(rank, ""))
    }
    orders: list[GroupOrder] = [Kill(rank, why) for rank, why in lost.items()]
    orders += _regroup([sight.report for rank, sight in sorted(ranks.items()) if rank not in lost], size)
    return orders + [Make(rank) for rank in range(size) if rank not in ranks]


def whole(ranks: Mapping[int, RankSight], size: int) -> bool:
    """Whether every rank serves. Effects: none."""
    serving = [rank for rank, sight in ranks.items() if sight.report and sight.report.phase is RankPhase.SERVING]
    return len(serving) == size


def _regroup(reports: Sequence[RankReport | None], size: int) -> list[GroupOrder]:
    """The regrouping that is due, if any: to those that serve, and those that wait to.

    Before the first one all must be there.
    """
    offered = [one for one in reports if one is not None and one.offer is not None]
    serving = [one for one in offered if one.phase in _STARTED]
    if not serving and len(offered) < size:
        return []
    members = tuple(one.pid for one in offered)
    if len(serving) == len(offered) and all(one.members == members and one.raised == one.epoch for one in serving):
        return []
    epoch = 1 + max(max(one.epoch, one.raised) for one in serving) if serving else 1
    version = 1 + max((one.version for one in serving), default=0)
    return [Regroup(epoch, version, tuple(one.offer for one in offered if one.offer is not None))]


def _late(ranks: Mapping[int, RankSight]) -> dict[int, str]:
    """Ranks that keep their peers waiting for longer than a step may take, and wait for nobody themselves: of a chain
    of ranks that wait for each other only the last one is to blame.
    """
    waiting = {
        rank: sight.report.late_peer
        for rank, sight in ranks.items()
        if sight.report is not None and sight.report.late_peer is not None and sight.silent_s < FRESH_S
    }
    return {peer: f"keeps rank {rank} waiting" for rank, peer in waiting.items() if peer not in waiting}


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
    if report.stalled_s >= LONGEST_AGE_S:
        return "cannot compute any more"
    if report.stalled_s:
        return f"has had work for {report.stalled_s:.1f} s without making a step"
    return ""

"""A shell makes its group whole, whatever happens to the ranks, and takes over what another one has left."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.instance.core.group_course import (
    LONGEST_AGE_S,
    Kill,
    Make,
    RankSight,
    Regroup,
    SeenGroup,
    abandoned,
    mend,
    orphan,
    whole,
)
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
    return RankReport(LEASE, phase, pid, "n", offer, *progress(order, raised), stalled_s, problem)


def sights(*phases: RankPhase) -> dict[int, RankSight]:
    """Ranks of which those that serve do so in the first epoch."""
    order = first_order(len(phases))
    serving = RankPhase.SERVING
    return {
        n: RankSight(report=report(n, phase, n, *((order, 1) if phase is serving else (None, 0))))
        for n, phase in enumerate(phases)
    }


def first_order(size: int) -> RegroupOrder:
    return ordered(1, 1, tuple(RankOffer(rank, rank, "", "x") for rank in range(size)))


def test_a_shell_takes_over_what_nobody_holds() -> None:
    held, left, leaving = SeenGroup("a", "one"), SeenGroup("b", "gone"), SeenGroup("c", "gone", leaving=True)
    assert orphan([held, leaving, left], {"one"}) == left
    assert orphan([held, leaving], {"one"}) is None
    assert orphan([SeenGroup("z", "gone"), left], set()) == left, "all shells that look see the same first"


def test_a_place_without_ranks_is_given_back_unless_its_shell_is_there() -> None:
    places = {"decode#a", "decode#b", "decode#c"}
    assert abandoned(places, {"decode#b"}, {"c"}) == ["decode#a"]


def test_a_group_begins_when_all_have_offered() -> None:
    assert mend({}, 2, SILENCE_S) == [Make(0), Make(1)]
    assert mend(sights(RankPhase.OFFERED, RankPhase.LOADING), 2, SILENCE_S) == []
    assert mend(sights(RankPhase.OFFERED, RankPhase.OFFERED), 2, SILENCE_S) == [Regroup(1, 1, first_order(2).offers)]
    assert mend(sights(RankPhase.SERVING, RankPhase.SERVING), 2, SILENCE_S) == []
    assert whole(sights(RankPhase.SERVING, RankPhase.SERVING), 2)


def test_who_is_left_goes_on_before_the_lost_rank_is_replaced() -> None:
    there = sights(RankPhase.SERVING, RankPhase.SERVING)
    alone = ordered(2, 2, first_order(2).offers[:1])
    assert mend({**there, 1: RankSight(dead=True)}, 2, SILENCE_S) == [
        Kill(1, "has ended"),
        Regroup(2, 2, alone.offers),
    ]
    left = {0: RankSight(report=report(0, RankPhase.SERVING, 0, alone, 2))}
    assert mend(left, 2, SILENCE_S) == [Make(1)]
    assert not whole(left, 2)
    back = {**left, 1: RankSight(report=report(1, RankPhase.OFFERED, 7))}
    (order,) = mend(back, 2, SILENCE_S)
    assert isinstance(order, Regroup)
    assert (order.epoch, order.version) == (3, 3)
    assert [(offer.rank, offer.pid) for offer in order.members] == [(0, 0), (1, 7)]


def test_an_epoch_that_has_not_begun_is_asked_for_anew() -> None:
    waiting = {n: RankSight(report=report(n, RankPhase.SERVING, n, first_order(2), 0)) for n in range(2)}
    assert mend(waiting, 2, SILENCE_S) == [Regroup(2, 2, first_order(2).offers)]


def test_a_rank_that_was_not_told_of_the_first_epoch_is_asked_for_anew() -> None:
    """Its peer was, whose window is in that epoch from the beginning."""
    one = {
        0: RankSight(report=report(0, RankPhase.SERVING, 0, first_order(2), 1)),
        1: sights(*[RankPhase.OFFERED] * 2)[1],
    }
    assert mend(one, 2, SILENCE_S) == [Regroup(2, 2, first_order(2).offers)]


def test_why_a_rank_is_replaced() -> None:
    silent = RankSight(silent_s=20.0, report=report(0, RankPhase.SERVING))
    failed = RankSight(report=report(0, RankPhase.FAILED))
    stalled = RankSight(report=report(0, RankPhase.SERVING, stalled_s=31.0))
    assert mend({0: silent}, 1, SILENCE_S) == [Kill(0, "has not answered for 20 s")]
    assert mend({0: failed}, 1, SILENCE_S) == [Kill(0, "could not be built: no room")]
    crashed = RankSight(report=report(0, RankPhase.SERVING, stalled_s=LONGEST_AGE_S))
    assert mend({0: crashed}, 1, SILENCE_S) == [Kill(0, "cannot compute any more")]
    assert mend({0: stalled}, 1, SILENCE_S) == [Kill(0, "has had work for 31.0 s without making a step")]


def late(rank: int, peer: int | None, silent_s: float = 0.0) -> RankSight:
    """A rank of three that waits for a peer for too long."""
    told = report(rank, RankPhase.SERVING, rank, first_order(3), 1)
    return RankSight(silent_s=silent_s, report=msgspec.structs.replace(told, late_peer=peer))


def test_who_keeps_its_peers_waiting_is_put_out() -> None:
    rest = Regroup(2, 2, first_order(3).offers[:2])
    orders = mend({0: late(0, 2), 1: late(1, 2), 2: late(2, None)}, 3, SILENCE_S)
    assert orders == [Kill(2, "keeps rank 1 waiting"), rest]
    chain = {0: late(0, 1), 1: late(1, 2), 2: late(2, None)}
    assert mend(chain, 3, SILENCE_S) == [Kill(2, "keeps rank 1 waiting"), rest]
    frozen_too = {0: late(0, 1), 1: late(1, 2, silent_s=3.0), 2: late(2, None)}
    assert mend(frozen_too, 3, SILENCE_S)[0] == Kill(1, "keeps rank 0 waiting"), "what it said before it froze is old"
    circle = {0: late(0, 1), 1: late(1, 0), 2: late(2, None)}
    assert mend(circle, 3, SILENCE_S) == [], "one of them has just gone on"


class Group(RuleBasedStateMachine):
    """A group whose ranks die, freeze and fail at any time, between a shell's orders."""

    @initialize(size=st.integers(1, 4))
    def begin(self, size: int) -> None:
        self.size = size
        self.ranks: dict[int, RankSight] = {}
        self.orders: dict[int, tuple[RegroupOrder, int]] = {}
        """For each rank that serves, the order that it follows and the epoch that has begun for it."""
        self.pids = 0

    def _set(self, rank: int, phase: RankPhase, stalled_s: float = 0.0) -> None:
        before = self.ranks[rank].report
        pid = before.pid if before is not None else 0
        order, raised = self.orders.get(rank, (None, 0))
        self.ranks[rank] = RankSight(report=report(rank, phase, pid, order, raised, stalled_s))

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def hurt(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        now = self.ranks[rank].report
        match data.draw(st.sampled_from(("die", "freeze", "fail", "stall"))):
            case "die":
                self.ranks[rank] = RankSight(dead=True, report=now)
            case "freeze":
                self.ranks[rank] = RankSight(silent_s=SILENCE_S + 1, report=now)
            case "fail" if now is not None and now.phase is RankPhase.LOADING:
                self._set(rank, RankPhase.FAILED)
            case "stall" if now is not None and now.phase is RankPhase.SERVING:
                self._set(rank, RankPhase.SERVING, 31.0)

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def load(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        self._load(rank)

    def _load(self, rank: int) -> None:
        now = self.ranks[rank].report
        if now is not None and now.phase is RankPhase.LOADING and not self.ranks[rank].dead:
            self._set(rank, RankPhase.OFFERED)

    @rule(told=st.integers(0, 4), begun=st.integers(0, 4))
    def obey(self, told: int, begun: int) -> None:
        """Carry out orders; of a regrouping so many ranks are told and begin, then the shell dies."""
        for order in mend(self.ranks, self.size, SILENCE_S):
            match order:
                case Make(rank):
                    assert rank not in self.ranks
                    self.pids += 1
                    self.ranks[rank] = RankSight(report=report(rank, RankPhase.LOADING, self.pids))
                case Kill(rank):
                    del self.ranks[rank]
                    self.orders.pop(rank, None)
                case Regroup(epoch, version, offers):
                    self._regroup(ordered(epoch, version, offers), told, begun)

    def _regroup(self, order: RegroupOrder, told: int, begun: int) -> None:
        members = order.members
        assert set(members) <= set(self.ranks), "nobody who was killed"
        for former, raised in self.orders.values():
            assert order.epoch > max(former.epoch, raised)
            assert order.version > former.version
        for rank in members[:told]:
            _, raised = self.orders.get(rank, (None, 1))
            self.orders[rank] = order, raised
            self._set(rank, RankPhase.SERVING)
        for rank in members[:begun] if told >= len(members) else ():
            self.orders[rank] = order, order.epoch
            self._set(rank, RankPhase.SERVING)

    @invariant()
    def who_computes_in_an_epoch_computes_with_the_same_processes(self) -> None:
        epochs: dict[int, set[tuple[int, ...]]] = {}
        for order, raised in getattr(self, "orders", {}).values():
            if raised == order.epoch:
                epochs.setdefault(raised, set()).add(tuple(offer.pid for offer in order.offers))
        assert all(len(members) == 1 for members in epochs.values())

    def teardown(self) -> None:
        """Left alone, it gets whole."""
        if not hasattr(self, "ranks"):
            return
        for _ in range(8):
            self.obey(9, 9)
            for rank in list(self.ranks):
                self._load(rank)
        assert whole(self.ranks, self.size)
        assert mend(self.ranks, self.size, SILENCE_S) == []


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=25)

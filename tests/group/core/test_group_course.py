"""A shell completes its group, whatever happens to the ranks, and takes over the state of another shell."""

from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.group.core import group_sides
from serving.group.core.group_course import (
    LONGEST_AGE_S,
    BeginDrain,
    Dismiss,
    Kill,
    Make,
    Regroup,
    mend_sides,
)
from serving.group.core.group_growth import grown, resized, switched
from serving.group.core.group_sides import (
    COMPUTING,
    GroupSide,
    GroupSizes,
    RankSnapshot,
    first_lease,
    resize_refusal,
    switch_refusal,
    wanted_ranks,
    whole_sides,
)
from serving.group.core.group_takeover import SeenGroup, abandoned, orphan, spare_places
from serving.values.group import RankLease, RankPhase, RankRole, RegroupOrder
from tests.fakes.rank_group import ordered
from tests.group.core.group_sights import SILENCE_S, drain_refusal, first_order, mend, report, sights, whole


def test_a_shell_takes_over_what_nobody_holds() -> None:
    held, left, leaving = SeenGroup("a", "one"), SeenGroup("b", "gone"), SeenGroup("c", "gone", RankLease("gone", 1, 3))
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
    assert mend({**there, 1: RankSnapshot(dead=True)}, 2, SILENCE_S) == [
        Kill(1, "has ended"),
        Regroup(2, 2, alone.offers),
    ]
    left = {0: RankSnapshot(report=report(0, RankPhase.SERVING, 0, alone, 2))}
    assert mend(left, 2, SILENCE_S) == [Make(1)]
    assert not whole(left, 2)
    back = {**left, 1: RankSnapshot(report=report(1, RankPhase.OFFERED, 7))}
    (order,) = mend(back, 2, SILENCE_S)
    assert isinstance(order, Regroup)
    assert (order.epoch, order.version) == (3, 3)
    assert [(offer.rank, offer.pid) for offer in order.members] == [(0, 0), (1, 7)]


def test_an_epoch_that_has_not_begun_is_asked_for_anew() -> None:
    waiting = {n: RankSnapshot(report=report(n, RankPhase.SERVING, n, first_order(2), 0)) for n in range(2)}
    assert mend(waiting, 2, SILENCE_S) == [Regroup(2, 2, first_order(2).offers)]


def test_a_rank_that_was_not_told_of_the_first_epoch_is_asked_for_anew() -> None:
    """Its peer received the epoch, and has its window in that epoch from the start."""
    one = {
        0: RankSnapshot(report=report(0, RankPhase.SERVING, 0, first_order(2), 1)),
        1: sights(*[RankPhase.OFFERED] * 2)[1],
    }
    assert mend(one, 2, SILENCE_S) == [Regroup(2, 2, first_order(2).offers)]


def test_why_a_rank_is_replaced() -> None:
    silent = RankSnapshot(silent_s=20.0, report=report(0, RankPhase.SERVING))
    failed = RankSnapshot(report=report(0, RankPhase.FAILED))
    stalled = RankSnapshot(report=report(0, RankPhase.SERVING, stalled_s=31.0))
    assert mend({0: silent}, 1, SILENCE_S) == [Kill(0, "has not answered for 20 s")]
    assert mend({0: failed}, 1, SILENCE_S) == [Kill(0, "could not be built: no room")]
    crashed = RankSnapshot(report=report(0, RankPhase.SERVING, stalled_s=LONGEST_AGE_S))
    assert mend({0: crashed}, 1, SILENCE_S) == [Kill(0, "cannot compute any more")]
    assert mend({0: stalled}, 1, SILENCE_S) == [Kill(0, "has had work for 31.0 s without making a step")]


def test_losses_are_counted_by_kind() -> None:
    lost = {
        0: RankSnapshot(dead=True),
        1: RankSnapshot(silent_s=20.0, report=report(1, RankPhase.SERVING)),
        2: RankSnapshot(report=report(2, RankPhase.FAILED)),
        3: RankSnapshot(report=report(3, RankPhase.SERVING, stalled_s=LONGEST_AGE_S)),
        4: RankSnapshot(report=report(4, RankPhase.SERVING, stalled_s=31.0)),
    }
    kinds = [order.kind.value for order in mend(lost, 5, SILENCE_S) if isinstance(order, Kill)]
    assert kinds == ["dead", "silent", "unbuilt", "broken", "stalled"]
    orders = mend({0: late(0, 2), 1: late(1, 2), 2: late(2, None)}, 3, SILENCE_S)
    assert [order.kind.value for order in orders if isinstance(order, Kill)] == ["late"]


def late(rank: int, peer: int | None, silent_s: float = 0.0) -> RankSnapshot:
    """One of three ranks that waits for a peer for too long."""
    told = report(rank, RankPhase.SERVING, rank, first_order(3), 1)
    return RankSnapshot(silent_s=silent_s, report=msgspec.structs.replace(told, late_peer=peer))


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


def with_phase(rank: int, phase: RankPhase, order: RegroupOrder, raised: int) -> RankSnapshot:
    return RankSnapshot(report=report(rank, phase, rank, order, raised))


def test_a_group_grows_by_all_newcomers_at_once() -> None:
    there = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert mend(there, 4, SILENCE_S) == [Make(2), Make(3)]
    loading, offered = RankSnapshot(report=report(2, RankPhase.LOADING, 2)), sights(*[RankPhase.OFFERED] * 4)
    assert mend({**there, 2: loading, 3: offered[3]}, 4, SILENCE_S) == [], "the other one is about to offer"
    assert mend({**there, 2: RankSnapshot(), 3: offered[3]}, 4, SILENCE_S)[0] == Regroup(
        2, 2, (*first_order(2).offers, first_order(4).offers[3])
    ), "who has no place yet is not waited for"
    assert mend({**there, 2: offered[2], 3: offered[3]}, 4, SILENCE_S) == [Regroup(2, 2, first_order(4).offers)]
    assert not whole({**there, 2: offered[2]}, 3)


def test_newcomers_start_one_by_one() -> None:
    """A start takes processor time from the ranks that compute."""
    group = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert mend(group, 4, SILENCE_S, former=2) == [Make(2)]
    assert mend(group | {2: RankSnapshot()}, 4, SILENCE_S, former=2) == [], "it has not answered yet"
    assert mend(group | {2: RankSnapshot(dead=True)}, 4, SILENCE_S, former=2)[1:] == [Make(3)]
    loading = {2: RankSnapshot(report=report(2, RankPhase.LOADING))}
    assert mend(group | loading, 4, SILENCE_S, former=2) == [Make(3)]
    assert mend({0: group[0]}, 4, SILENCE_S, former=2)[1:] == [Make(1), Make(2)], "what is lost does not wait"


def test_a_loss_while_it_grows_does_not_wait_for_newcomers() -> None:
    there = {**sights(RankPhase.SERVING, RankPhase.SERVING), 1: RankSnapshot(dead=True)}
    loading = RankSnapshot(report=report(2, RankPhase.LOADING, 2))
    assert mend({**there, 2: loading}, 3, SILENCE_S) == [Kill(1, "has ended"), Regroup(2, 2, first_order(1).offers)]


def test_a_group_shrinks_by_its_last_ranks_when_they_have_drained() -> None:
    order = first_order(3)
    there = sights(*[RankPhase.SERVING] * 3)
    assert mend(there, 2, SILENCE_S) == [BeginDrain(2)]
    assert whole(there, 2)
    assert mend({**there, 2: with_phase(2, RankPhase.LEAVING, order, 1)}, 2, SILENCE_S) == []
    left = {**there, 2: with_phase(2, RankPhase.LEFT, order, 1)}
    assert mend(left, 2, SILENCE_S) == [Regroup(2, 2, order.offers[:2], (2,))]
    both = ordered(2, 2, order.offers[:2])
    without = {rank: with_phase(rank, RankPhase.SERVING, both, 2) for rank in range(2)}
    assert mend({**without, 2: left[2]}, 2, SILENCE_S) == [Dismiss(2)], "a shell died before it could"
    assert mend({**without, 2: RankSnapshot(report=report(2, RankPhase.OFFERED, 2))}, 2, SILENCE_S) == [Dismiss(2)]
    assert mend({**without, 2: RankSnapshot()}, 2, SILENCE_S) == [Dismiss(2)], (
        "it has no place, and needs none any more"
    )
    assert mend({**without, 2: RankSnapshot(dead=True)}, 2, SILENCE_S) == [Kill(2, "has ended")]


def test_a_member_that_has_not_begun_is_dismissed_after_the_others_compute_without_it() -> None:
    """A shell died while it sent the first order: rank 0 has it, rank 1 does not. Then the group is to shrink."""
    order = first_order(2)
    there = {0: with_phase(0, RankPhase.SERVING, order, 1), 1: RankSnapshot(report=report(1, RankPhase.OFFERED, 1))}
    assert mend(there, 1, SILENCE_S) == [Regroup(2, 2, order.offers[:1])]
    alone = {**there, 0: with_phase(0, RankPhase.SERVING, ordered(2, 2, order.offers[:1]), 2)}
    assert mend(alone, 1, SILENCE_S) == [Dismiss(1)]


def test_a_rank_that_drains_is_replaced_in_its_name() -> None:
    order = first_order(2)
    there = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert drain_refusal(there, 2, 1) == ""
    assert mend({**there, 1: with_phase(1, RankPhase.LEAVING, order, 1)}, 2, SILENCE_S) == []
    left = {**there, 1: with_phase(1, RankPhase.LEFT, order, 1)}
    assert mend(left, 2, SILENCE_S) == [Regroup(2, 2, order.offers[:1], (1,))]
    alone = {0: with_phase(0, RankPhase.SERVING, ordered(2, 2, order.offers[:1]), 2)}
    assert mend(alone, 2, SILENCE_S) == [Make(1)]


def test_which_ranks_cannot_be_drained() -> None:
    there = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert "there is no rank 2" in drain_refusal(there, 2, 2)
    assert "the only rank" in drain_refusal({0: there[0]}, 1, 0)
    assert "not whole" in drain_refusal(there, 3, 1)
    assert "not whole" in drain_refusal({**there, 0: with_phase(0, RankPhase.LEAVING, first_order(2), 1)}, 2, 1)


def test_which_sizes_a_group_cannot_have() -> None:
    sizes = GroupSizes(2, 6)
    assert resize_refusal(6, sizes, experts=8) == ""
    assert "give 1 to 6" in resize_refusal(7, sizes, experts=8)
    assert "give 1 to 6" in resize_refusal(0, sizes, experts=8)
    assert "a layer has 4 experts" in resize_refusal(5, sizes, experts=4)
    assert resize_refusal(5, GroupSizes(2, 6, redundant=1), experts=4) == ""


def test_places_of_ranks_that_left_are_spare() -> None:
    assert spare_places([2, 3, 4], ranks={0, 1, 3}, wanted={0, 1}) == [2, 4]


@dataclass
class Played:
    """One rank's process in `Group`."""

    pid: int
    phase: RankPhase = RankPhase.LOADING
    order: RegroupOrder | None = None
    raised: int = 0
    stopped: bool = False
    """It computes no more."""
    trouble: str = ""


class Group(RuleBasedStateMachine):
    """A group that is resized, and whose ranks die, freeze, fail and drain at any time between a shell's commands."""

    @initialize(size=st.integers(1, 4), experts=st.integers(0, 2), spares=st.integers(0, 2))
    def begin(self, size: int, experts: int, spares: int) -> None:
        """Ranks have both roles, or there are expert ranks of their own."""
        role = RankRole.ATTENTION if experts else RankRole.BOTH
        self.sizes = [GroupSizes(size, 8, spares=spares, role=role)]
        if experts:
            self.sizes.append(GroupSizes(experts, 8, spares=spares, role=RankRole.EXPERTS))
        self.lease = first_lease("s", 1, 1, self.sizes)
        self.ranks: dict[int, Played] = {}
        self.pids = 0

    @property
    def sides(self) -> list[GroupSide]:
        return [one.side(self.lease) for one in self.sizes]

    def sights(self) -> dict[int, RankSnapshot]:
        found = {}
        for rank, one in self.ranks.items():
            stalled_s = 31.0 if one.trouble == "stall" else 0.0
            role = next(each.role for each in self.sizes if each.has(rank))
            told = report(rank, one.phase, one.pid, one.order, one.raised, stalled_s, role)
            silent_s = SILENCE_S + 1 if one.trouble == "freeze" else 0.0
            found[rank] = RankSnapshot(dead=one.trouble == "die", silent_s=silent_s, report=told)
        return found

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def hurt(self, data: st.DataObject) -> None:
        one = self.ranks[data.draw(st.sampled_from(sorted(self.ranks)))]
        one.trouble = data.draw(st.sampled_from(("die", "freeze", "stall")))
        if one.phase is RankPhase.LOADING and data.draw(st.booleans()):
            one.phase, one.trouble = RankPhase.FAILED, ""

    @rule(size=st.integers(1, 5), side=st.integers(0, 1))
    def resize(self, size: int, side: int) -> None:
        self.lease = resized(self.lease, self.sizes[side % len(self.sizes)].role, size)

    @rule(data=st.data(), to=st.sampled_from([RankRole.ATTENTION, RankRole.EXPERTS]))
    @precondition(lambda self: self.ranks)
    def switch(self, data: st.DataObject, to: RankRole) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        if not switch_refusal(self.sights(), self.sides, rank, to):
            self.lease = switched(self.lease, to)
            assert all(side.size for side in self.sides)

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def drain(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        if not group_sides.drain_refusal(self.sights(), self.sides, rank):
            self.ranks[rank].phase = RankPhase.LEAVING

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def go_on(self, data: st.DataObject) -> None:
        self._go_on(self.ranks[data.draw(st.sampled_from(sorted(self.ranks)))])

    def _go_on(self, one: Played) -> None:
        """The rank is built, or has drained."""
        after = {RankPhase.LOADING: RankPhase.OFFERED, RankPhase.LEAVING: RankPhase.LEFT}
        if one.trouble not in ("die", "freeze"):
            one.phase = after.get(one.phase, one.phase)

    @rule(told=st.integers(0, 7), begun=st.integers(0, 7))
    def obey(self, told: int, begun: int) -> None:
        """Execute commands; of a regroup, so many ranks receive and start it, then the shell dies."""
        self.lease = grown(self.lease, self.sights(), self.sides)
        for order in mend_sides(self.sights(), self.sides, SILENCE_S):
            match order:
                case Make(rank):
                    assert rank not in self.ranks
                    assert rank in wanted_ranks(self.sides)
                    self.pids += 1
                    self.ranks[rank] = Played(self.pids)
                case Kill(rank):
                    del self.ranks[rank]
                case BeginDrain(rank):
                    assert any(side.has(rank) and (rank >= side.full or side.spares) for side in self.sides)
                    assert self.ranks[rank].phase is RankPhase.SERVING
                    self.ranks[rank].phase = RankPhase.LEAVING
                case Dismiss(rank):
                    self._end(rank)
                case Regroup():
                    self._regroup(order, told, begun)

    def _end(self, rank: int) -> None:
        one = self.ranks.pop(rank)
        assert one.phase in (RankPhase.LOADING, RankPhase.OFFERED, RankPhase.LEFT)
        for other in self.ranks.values():
            if other.order is not None and other.raised == other.order.epoch and other.trouble != "die":
                assert other.phase not in COMPUTING or one.pid not in other.order.processes()

    def _regroup(self, due: Regroup, told: int, begun: int) -> None:
        order = ordered(due.epoch, due.version, due.members)
        members = order.members
        assert set(members) <= set(self.ranks), "nobody who was killed"
        assert all(self.ranks[rank].phase is RankPhase.LEFT for rank in due.left)
        for one in self.ranks.values():
            if one.order is None or one.phase is RankPhase.LEFT:
                continue
            if due.keeps_epoch:
                assert one.raised <= order.epoch == one.order.epoch
                assert one.order.processes(with_experts=True) == order.processes(with_experts=True)
            else:
                assert order.epoch > max(one.order.epoch, one.raised)
                assert order.version > one.order.version
        for rank in members[:told]:
            one = self.ranks[rank]
            one.order, one.raised = order, one.raised or 1
            one.phase = RankPhase.SERVING if one.phase is RankPhase.OFFERED else one.phase
        if told < len(members):
            return
        for rank in due.left:
            self.ranks[rank].stopped = True
        for rank in members[:begun]:
            self.ranks[rank].raised = order.epoch
            others = [one for number, one in self.ranks.items() if number not in members and one.order is not None]
            assert all(one.stopped for one in others), "who is no member computes no more"

    @invariant()
    def who_computes_in_an_epoch_computes_with_the_same_experts(self) -> None:
        epochs: dict[int, set[tuple[int, ...]]] = {}
        for one in getattr(self, "ranks", {}).values():
            if one.order is not None and one.raised == one.order.epoch:
                epochs.setdefault(one.raised, set()).add(one.order.processes(with_experts=True))
        assert all(len(members) == 1 for members in epochs.values())

    def teardown(self) -> None:
        """Without further events, the group becomes complete, without surplus ranks."""
        if not hasattr(self, "ranks"):
            return
        for _ in range(40):
            self.obey(20, 20)
            for one in self.ranks.values():
                self._go_on(one)
        sights = self.sights()
        assert whole_sides(sights, self.sides)
        assert set(self.ranks) == wanted_ranks(self.sides)
        for side in self.sides:
            assert sum(one.phase is RankPhase.SERVING for one in side.of(self.ranks).values()) == side.size
            assert len(group_sides.waiting_spares(sights, [side])) == side.spares
        assert mend_sides(sights, self.sides, SILENCE_S) == []


TestGroup = Group.TestCase
TestGroup.settings = settings(stateful_step_count=25)

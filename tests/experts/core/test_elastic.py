"""Groups that grow and shrink while they serve."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import LedgerError, PlacementError
from serving.experts.core.deepseek import GlobalPlacement
from serving.experts.core.elastic import (
    AdmitRanks,
    DrainRanks,
    GroupResize,
    RankDrained,
    ReleaseRanks,
    ResizeEffect,
    ResizeEnded,
    grow,
    shrink,
)
from serving.experts.core.first_map import first_map
from serving.experts.core.mover import MoverTick
from serving.experts.core.placement import GroupShape
from serving.experts.core.rebalance import RebalanceSettings
from serving.experts.core.slot_ledger import SlotLedger
from serving.values.expert_moves import MoveFailed, SwitchMap
from tests.experts.core.groups_of_ranks import RankGroup, check_rate

RULES = RebalanceSettings(expert_bytes=100, bytes_per_s=100.0, deadline_s=30.0)
LOAD = ((40, 30, 20, 10),)
EXTRA = (AdmitRanks, DrainRanks, ReleaseRanks, ResizeEnded)


class Serving:
    """A group of two or more ranks under a resize."""

    def __init__(self, slots: tuple[int, ...], experts: int = 4) -> None:
        self.ledger = SlotLedger(first_map(GroupShape(slots, (0,) * len(slots)), experts))
        self.group = RankGroup(self.ledger)
        self.seen: list[ResizeEffect] = []
        self.one: GroupResize | None = None
        self.now = 0.0

    def begin(self, one: GroupResize) -> None:
        """Start a resize."""
        self.one = one
        self.take(one.start(self.now))

    def take(self, effects: list[ResizeEffect]) -> None:
        """Note what it wants."""
        for effect in effects:
            if isinstance(effect, EXTRA):
                self.seen.append(effect)
                assert self.ledger.busy is isinstance(effect, DrainRanks), "somebody else could move experts meanwhile"
                if isinstance(effect, ReleaseRanks):
                    used = {home.at.rank for one in self.group.map.layers for own in one.homes for home in own}
                    assert not used & set(effect.ranks), "a rank leaves that tokens go to"
                if isinstance(effect, ResizeEnded):
                    self.one = None
            else:
                self.group.take([effect], self.now)

    def step(self, choice: int = 0) -> None:
        """Carry out one thing, or let time pass."""
        assert self.one is not None
        if self.group.asked:
            self.take(self.one.on(self.group.do(choice % len(self.group.asked)), self.now))
        elif self.seen and isinstance(self.seen[-1], DrainRanks):
            ranks = self.seen[-1].ranks
            for rank in ranks:
                self.take(self.one.on(RankDrained(rank), self.now))
        else:
            wake = self.one.next_wake()
            assert wake is not None, "a resize that waits for nothing"
            self.now = max(self.now, wake)
            self.take(self.one.on(MoverTick(), self.now))

    def finish(self) -> None:
        """Carry out everything."""
        while self.one is not None:
            self.step()


def test_new_ranks_get_experts_before_they_join() -> None:
    serving = Serving((2, 2))
    serving.begin(grow(serving.ledger, (2, 2), (0,) * 4, [LOAD], GlobalPlacement(), RULES, 0.0))
    assert serving.seen == []
    serving.finish()
    assert serving.seen == [AdmitRanks((2, 3)), ResizeEnded(None)]
    assert all(None not in held for held in serving.ledger.map.placement(0))
    check_rate(serving.group.fetches, 1.0)
    serving.ledger.check()


def test_only_what_would_be_lost_moves_before_a_rank_leaves() -> None:
    serving = Serving((3, 3, 3))
    serving.begin(shrink(serving.ledger, frozenset({2}), [LOAD], RULES, 0.0))
    serving.finish()
    assert [move.expert for _, move in serving.group.fetches] == [3]
    assert serving.seen == [DrainRanks((2,)), ReleaseRanks((2,)), ResizeEnded(None)]
    assert serving.ledger.map.slots == (3, 3, 0)
    serving.ledger.check()


def test_a_rank_that_is_drained_already_leaves_at_once() -> None:
    serving = Serving((3, 3, 3))
    serving.begin(shrink(serving.ledger, frozenset({2}), [LOAD], RULES, 0.0))
    assert serving.one is not None
    serving.take(serving.one.on(RankDrained(2), 0.0))
    serving.finish()
    assert serving.seen == [ReleaseRanks((2,)), ResizeEnded(None)]


def test_a_group_that_would_be_too_small_is_refused() -> None:
    serving = Serving((2, 2))
    with pytest.raises(PlacementError, match="2 experts lie on the leaving ranks only, and 0 of them fit"):
        shrink(serving.ledger, frozenset({1}), [LOAD], RULES, 0.0)
    assert not serving.ledger.busy


def test_two_changes_at_once_are_refused() -> None:
    serving = Serving((3, 3, 3))
    shrink(serving.ledger, frozenset({2}), [LOAD], RULES, 0.0)
    with pytest.raises(LedgerError, match="being moved"):
        grow(serving.ledger, (3,), (0,) * 4, [LOAD], GlobalPlacement(), RULES, 0.0)
    assert serving.ledger.map.slots == (3, 3, 3)


@pytest.mark.parametrize("joins", [True, False])
def test_a_resize_whose_moves_fail_leaves_a_group_that_serves(joins: bool) -> None:
    serving = Serving((3, 3, 3))
    if joins:
        serving.begin(grow(serving.ledger, (2,), (0,) * 4, [LOAD], GlobalPlacement(), RULES, 0.0))
    else:
        serving.begin(shrink(serving.ledger, frozenset({2}), [LOAD], RULES, 0.0))
    assert serving.one is not None
    (first, *_) = serving.group.asked
    serving.take(serving.one.on(MoveFailed(first.move, "broken"), 0.0))  # type: ignore[union-attr]
    reason = f"layer 0, expert {first.move.expert} to rank {first.move.to.rank}: broken"  # type: ignore[union-attr]
    assert serving.seen == [*([AdmitRanks((3,))] if joins else []), ResizeEnded(reason)]
    assert not serving.ledger.busy
    serving.ledger.check()


@pytest.mark.parametrize("steps", range(6))
def test_a_lost_rank_ends_a_resize_wherever_it_is(steps: int) -> None:
    serving = Serving((3, 3, 3))
    serving.begin(shrink(serving.ledger, frozenset({2}), [LOAD], RULES, 0.0))
    for _ in range(steps):
        if serving.one is not None:
            serving.step()
    one = serving.one
    if one is not None:
        serving.take(one.on_rank_lost())
        assert serving.seen[-1] == ResizeEnded("a rank was lost")
        assert one.on_rank_lost() == []
    assert not serving.ledger.busy


class ResizeMachine(RuleBasedStateMachine):
    """Sizes change again and again; moves fail or are late."""

    @initialize(ranks=st.integers(1, 3))
    def begin(self, ranks: int) -> None:
        self.it = Serving((4,) * ranks)

    def live(self) -> list[int]:
        return [rank for rank, slots in enumerate(self.it.ledger.map.slots) if slots]

    @precondition(lambda self: self.it.one is None)
    @rule(slots=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def grow(self, slots: list[int]) -> None:
        nodes = (0,) * (len(self.it.ledger.map.slots) + len(slots))
        self.it.begin(grow(self.it.ledger, slots, nodes, [LOAD], GlobalPlacement(), RULES, self.it.now))

    @precondition(lambda self: self.it.one is None)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        leaving = data.draw(st.sets(st.sampled_from(self.live()), max_size=3))
        try:
            self.it.begin(shrink(self.it.ledger, frozenset(leaving), [LOAD], RULES, self.it.now))
        except PlacementError:
            assert not self.it.ledger.busy

    @precondition(lambda self: self.it.one is not None)
    @rule(choice=st.integers(0, 99))
    def step(self, choice: int) -> None:
        self.it.step(choice)

    @precondition(lambda self: self.it.one is not None and self.it.group.asked)
    @rule(choice=st.integers(0, 99))
    def fail(self, choice: int) -> None:
        able = [one for one in self.it.group.asked if not isinstance(one, SwitchMap)]
        if able and self.it.one is not None:
            effect = able[choice % len(able)]
            self.it.group.asked.remove(effect)
            self.it.take(self.it.one.on(MoveFailed(effect.move, "failed"), self.it.now))  # type: ignore[union-attr]

    @precondition(lambda self: self.it.one is not None)
    @rule(seconds=st.floats(1, 40))
    def wait(self, seconds: float) -> None:
        self.it.now += seconds
        if self.it.one is not None:
            self.it.take(self.it.one.on(MoverTick(), self.it.now))

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "it"):
            self.it.ledger.check()
            self.it.group.check()
            check_rate(self.it.group.fetches, 1.0)

    def teardown(self) -> None:
        if hasattr(self, "it"):
            self.it.finish()


TestResizeMachine = ResizeMachine.TestCase
TestResizeMachine.settings = hypothesis_settings(max_examples=40, stateful_step_count=25)

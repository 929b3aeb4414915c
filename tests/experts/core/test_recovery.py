"""Experts of a lost rank: known cases, and any losses in any order."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import LedgerError
from serving.experts.core.moves import slots_of
from serving.experts.core.recovery import ExpertRecovery, OnLoss, RecoveryEffect, RecoveryEnded
from serving.experts.core.rehome import rehome
from serving.experts.core.slot_ledger import SlotLedger
from serving.experts.core.split import split
from serving.values.expert_map import ExpertMap, ExpertSlot, Placement
from serving.values.expert_moves import LoadExpert, MapSwitched, MoveFailed, MoveLoaded, SwitchMap
from tests.experts.core.groups_of_ranks import RankGroup

ALL = (OnLoss.REDUNDANT, OnLoss.RELOAD, OnLoss.MASK)
LOADS = (40, 30, 20, 10)


def ledger_of(placement: Placement, experts: int = 4) -> SlotLedger:
    """One layer."""
    slots = tuple(map(len, placement))
    return SlotLedger(ExpertMap(1, slots, (split(placement, LOADS[:experts]),)))


def recovery(ledger: SlotLedger, on_loss: tuple[OnLoss, ...]) -> ExpertRecovery:
    """With a deadline at 10 s."""
    return ExpertRecovery(ledger, on_loss, [LOADS], deadline=10.0)


def switched(effects: list[RecoveryEffect]) -> ExpertMap:
    """The map that is asked for."""
    (effect,) = effects
    assert isinstance(effect, SwitchMap)
    return effect.map


def test_copies_go_on_without_a_byte() -> None:
    ledger = ledger_of(((0, 1, 2), (2, 3, 0), (1, 3, None)))
    one = recovery(ledger, (OnLoss.REDUNDANT,))
    new = switched(one.start(frozenset({0})))
    assert one.on(MapSwitched(new.version)) == [RecoveryEnded((), ())]
    assert ledger.map.placement(0) == ((), (2, 3, 0), (1, 3, None))
    assert not ledger.busy
    ledger.check()


def test_others_are_loaded_into_empty_slots_and_over_copies_that_matter_least() -> None:
    ledger = ledger_of(((0, 1), (2, 3), (2, 3, None)))
    one = recovery(ledger, ALL)
    effects = one.start(frozenset({0}))
    moves = [effect.move for effect in effects if isinstance(effect, LoadExpert)]
    assert [(move.expert, move.to, move.source) for move in moves] == [
        (0, ExpertSlot(2, 2), None),
        (1, ExpertSlot(1, 1), None),
    ]
    assert one.next_wake() == 10.0
    assert one.on(MoveLoaded(moves[0])) == []
    new = switched(one.on(MoveLoaded(moves[1])))
    assert new.placement(0) == ((), (2, 1), (2, 3, 0))
    one.on(MapSwitched(new.version))
    ledger.check()


def test_masking_first_loads_nothing() -> None:
    ledger = ledger_of(((0, 1), (2, 3), (2, 3, None)))
    one = recovery(ledger, (OnLoss.MASK, OnLoss.RELOAD))
    new = switched(one.start(frozenset({0})))
    assert new.layers[0].masked == {0, 1}
    assert one.on(MapSwitched(new.version)) == [RecoveryEnded(((0, 0), (0, 1)), ())]


def test_without_room_the_coldest_are_masked() -> None:
    ledger = ledger_of(((0, 1), (2, 3), (2, None)))
    one = recovery(ledger, ALL)
    ledger_after = [effect.move.expert for effect in one.start(frozenset({0, 1})) if isinstance(effect, LoadExpert)]
    assert ledger_after == [0]


def test_without_a_home_and_without_mask_the_group_must_not_compute() -> None:
    one = recovery(ledger_of(((0, 1), (2, 3))), (OnLoss.REDUNDANT,))
    assert one.start(frozenset({1})) == [RecoveryEnded((), ((0, 2), (0, 3)))]


@pytest.mark.parametrize("late", [False, True])
def test_a_load_that_fails_or_is_late_is_masked(late: bool) -> None:
    ledger = ledger_of(((0, None), (1, 2), (3,)))
    one = recovery(ledger, ALL)
    (effect,) = one.start(frozenset({2}))
    assert isinstance(effect, LoadExpert)
    assert one.tick(9.0) == []
    new = switched(one.tick(10.0) if late else one.on(MoveFailed(effect.move, "checksum")))
    assert new.layers[0].masked == {3}
    assert one.on(MapSwitched(0)) == []
    assert one.on(MapSwitched(new.version)) == [RecoveryEnded(((0, 3),), ())]
    assert one.next_wake() is None


def test_a_second_loss_begins_anew_and_keeps_what_is_coming() -> None:
    ledger = ledger_of(((0, 1), (2, None), (None, None), (3, None)))
    one = recovery(ledger, ALL)
    first = [effect.move for effect in one.start(frozenset({0})) if isinstance(effect, LoadExpert)]
    second = [effect.move for effect in one.start(frozenset({1})) if isinstance(effect, LoadExpert)]
    live = [move for move in first if move.to.rank != 1]
    assert sorted(move.expert for move in live + second) == [0, 1, 2]
    assert len({move.to for move in live + second}) == 3


def test_a_recovery_waits_for_whoever_moves_experts() -> None:
    ledger = ledger_of(((0, 1), (2, 3)))
    ledger.claim()
    with pytest.raises(LedgerError, match="being moved"):
        recovery(ledger, ALL)


def test_no_expert_loses_its_last_home_to_another() -> None:
    assert rehome([3], slots_of(((0,), (1, 2))), LOADS) == {}


class RecoveryMachine(RuleBasedStateMachine):
    """Ranks die in any order, also while others' experts are loaded."""

    @initialize(data=st.data(), on_loss=st.permutations(list(OnLoss)), some=st.integers(1, 3))
    def begin(self, data: st.DataObject, on_loss: list[OnLoss], some: int) -> None:
        ranks = data.draw(st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=2, max_size=5))
        missing = {0, 1, 2, 3} - set().union(*ranks)
        placement = tuple((*sorted(one), None) for one in (*ranks, missing))
        self.ledger, self.on_loss = ledger_of(placement), tuple(on_loss[:some])
        self.group = RankGroup(self.ledger)
        self.now, self.dead = 0.0, False
        self.one: ExpertRecovery | None = None

    def take(self, effects: list[RecoveryEffect]) -> None:
        for effect in effects:
            if isinstance(effect, RecoveryEnded):
                self.dead = bool(effect.unserved)
                assert not (self.dead and OnLoss.MASK in self.on_loss)
                assert OnLoss.MASK in self.on_loss or not effect.masked
                self.one = None
            else:
                self.group.take([effect], self.now)

    @precondition(lambda self: not self.dead and sum(1 for slots in self.ledger.map.slots if slots) > 1)
    @rule(choice=st.integers(0, 9))
    def lose(self, choice: int) -> None:
        live = [rank for rank, slots in enumerate(self.ledger.map.slots) if slots]
        rank = live[choice % len(live)]
        self.group.lose(rank)
        if self.one is None:
            self.one = ExpertRecovery(self.ledger, self.on_loss, [LOADS], deadline=self.now + 10)
        self.take(self.one.start(frozenset({rank})))

    @precondition(lambda self: self.group.asked and not self.dead)
    @rule(choice=st.integers(0, 99), fails=st.booleans())
    def do(self, choice: int, fails: bool) -> None:
        index = choice % len(self.group.asked)
        effect = self.group.asked[index]
        if fails and isinstance(effect, LoadExpert):
            del self.group.asked[index]
            event: MoveFailed | MoveLoaded | MapSwitched = MoveFailed(effect.move, "failed")
        else:
            event = self.group.do(index)  # type: ignore[assignment]
        if self.one is not None:
            self.take(self.one.on(event))

    @rule(seconds=st.floats(0.1, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.one is not None and not self.dead:
            self.take(self.one.tick(self.now))

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "group") and self.one is None and not self.dead:
            self.ledger.check()
            self.group.check()

    def teardown(self) -> None:
        while hasattr(self, "group") and self.one is not None:
            assert self.group.asked, "a recovery that waits for nothing"
            self.take(self.one.on(self.group.do(0)))  # type: ignore[arg-type]


TestRecoveryMachine = RecoveryMachine.TestCase
TestRecoveryMachine.settings = hypothesis_settings(max_examples=80, stateful_step_count=20)

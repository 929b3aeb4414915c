"""Expert moves: when they start, and that they finish within the rate without a wrong token."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import LedgerError
from serving.group.core.group_map import first_map
from serving.group.core.mover import MoverTick
from serving.group.core.placement import GroupShape, split
from serving.group.core.placement_policies import GlobalPlacement, TimeSlicedPlacement
from serving.group.core.rebalance import RebalanceOutcome, Rebalancer, RebalanceSettings, plan_rebalance
from serving.group.core.slot_ledger import SlotLedger
from serving.values.expert_map import ExpertMap, ExpertSlot, LoadExpert, MapSwitched, MoveFailed, SwitchMap
from tests.group.core.groups_of_ranks import RankGroup, check_rate
from tests.group.core.strategies import POLICIES

RULES = RebalanceSettings(expert_bytes=100, bytes_per_s=100.0, min_gain=0.05, lasting_s=100.0, deadline_s=30.0)
FOUR = GroupShape((3,) * 4, (0,) * 4)
EVEN, SKEWED = ((10,) * 8,) * 2, ((90, *[10] * 7),) * 2


def rebalancer(layers: int = 1, rules: RebalanceSettings = RULES) -> tuple[Rebalancer, RankGroup]:
    """Eight experts on four ranks with three slots each."""
    ledger = SlotLedger(first_map(FOUR, 8, layers))
    return Rebalancer(ledger, TimeSlicedPlacement(), FOUR.nodes, rules), RankGroup(ledger)


def finish(one: Rebalancer, group: RankGroup, now: float) -> float:
    """Execute all commands in order, until the end."""
    while one.ledger.busy:
        if group.asked:
            group.take(one.on(group.do(0), now), now)
        else:
            wake = one.next_wake()
            assert wake is not None
            now = wake
            group.take(one.on(MoverTick(), now), now)
    return now


def test_even_load_moves_nothing() -> None:
    one, _ = rebalancer()
    assert one.look([EVEN], 0.0) is None
    assert one.look([()], 1.0) is None


def test_skewed_load_moves_experts_after_two_looks_and_then_rests() -> None:
    one, group = rebalancer()
    assert one.look([SKEWED], 0.0) is None
    plan = one.look([SKEWED], 10.0)
    assert plan is not None
    group.take(one.start(plan, 10.0), 10.0)
    assert one.look([SKEWED], 10.0) is None, "never two at once"
    with pytest.raises(LedgerError, match="experts are being moved"):
        one.start(plan, 10.0)
    end = finish(one, group, 10.0)
    assert len(group.map.layers[0].homes[0]) == 4
    assert one.counts == {RebalanceOutcome.DONE: 1}
    assert one.look([EVEN], end + RULES.rest_s - 1) is None
    one.ledger.check()
    check_rate(group.fetches, 1.0)


def test_a_gain_that_was_seen_once_is_forgotten() -> None:
    one, _ = rebalancer()
    assert [one.look([load], 0.0) for load in (SKEWED, EVEN, SKEWED)] == [None] * 3


def test_a_plan_that_fits_only_what_it_has_seen_is_not_made() -> None:
    """Each slice has another hot expert: a plan from every other slice does not hold for the rest."""
    load = ((90, *[10] * 7), (10, 10, 10, 90, *[10] * 4))
    plan = plan_rebalance(rebalancer()[0].ledger, [load], TimeSlicedPlacement(), FOUR.nodes, RULES)
    assert plan.layers == ()


def test_the_hottest_layer_is_first_and_late_ones_must_pay_for_the_wait() -> None:
    one, _ = rebalancer(layers=3)
    hotter = ((900, *[10] * 7),) * 2
    plan = plan_rebalance(one.ledger, [SKEWED, EVEN, hotter], TimeSlicedPlacement(), FOUR.nodes, RULES)
    assert [layer.layer for layer in plan.layers] == [2, 0]
    hasty = RebalanceSettings(expert_bytes=100, bytes_per_s=100.0, lasting_s=7.0)
    plan = plan_rebalance(one.ledger, [SKEWED, EVEN, hotter], TimeSlicedPlacement(), FOUR.nodes, hasty)
    assert [layer.layer for layer in plan.layers] == [2]


def test_weights_alone_change_where_they_are_enough() -> None:
    """A copy already exists, so no expert is fetched."""
    ledger = SlotLedger(ExpertMap(1, (2, 2), (split(((0, 1), (1, 2)), (1, 1, 60)),)))
    load = ((10, 60, 10),) * 2
    plan = plan_rebalance(ledger, [load], TimeSlicedPlacement(), (0, 0), RULES)
    (layer,) = plan.layers
    assert [one.moves for one in layer.rounds] == [()]


def test_a_layer_without_a_spare_slot_is_named() -> None:
    shape = GroupShape((2, 2), (0, 0))
    ledger = SlotLedger(first_map(shape, 4))
    plan = plan_rebalance(ledger, [((50, 50, 1, 1),) * 2], GlobalPlacement(), shape.nodes, RULES)
    assert (plan.layers, plan.stuck) == ((), (0,))


def test_a_masked_expert_comes_back_when_there_is_room() -> None:
    ledger = SlotLedger(ExpertMap(1, (2, 2), (split(((0, 1), (None, None)), (1, 1, 0)),)))
    assert ledger.map.layers[0].masked == {2}
    one = Rebalancer(ledger, GlobalPlacement(), (0, 0), RULES)
    plan = plan_rebalance(ledger, [()], one.policy, one.nodes, RULES)
    group = RankGroup(ledger)
    group.take(one.start(plan, 0.0), 0.0)
    finish(one, group, 0.0)
    assert not group.map.layers[0].masked


def test_a_masked_expert_without_room_stays_masked() -> None:
    ledger = SlotLedger(ExpertMap(1, (1, 1), (split(((0,), (1,)), (5, 5, 0)),)))
    assert plan_rebalance(ledger, [((5, 5, 0),)], GlobalPlacement(), (0, 0), RULES).layers == ()


def begun() -> tuple[Rebalancer, RankGroup]:
    """A rebalance whose weights are all staged; the first slots are about to be loaded."""
    one, group = rebalancer()
    plan = plan_rebalance(one.ledger, [SKEWED], one.policy, one.nodes, RULES)
    group.take(one.start(plan, 0.0), 0.0)
    now = 0.0
    while not any(isinstance(effect, LoadExpert) for effect in group.asked):
        if group.asked:
            group.take(one.on(group.do(0), now), now)
        else:
            now = one.next_wake() or now
            group.take(one.on(MoverTick(), now), now)
    return one, group


def test_a_rebalance_that_does_not_end_is_undone_and_counted() -> None:
    one, group = begun()
    late = group.asked.pop()
    assert isinstance(late, LoadExpert)
    while group.asked:
        group.take(one.on(group.do(0), 5.0), 5.0)
    assert one.next_wake() == RULES.deadline_s
    group.take(one.on(MoverTick(), RULES.deadline_s), RULES.deadline_s)
    finish(one, group, RULES.deadline_s)
    assert one.counts == {RebalanceOutcome.UNDONE: 1}
    assert one.last_reason == "deadline"
    assert late.move.to not in one.ledger.usable(0), "it may still be written"
    group.asked.append(late)
    group.take(one.on(group.do(0), 99.0), 99.0)
    assert one.ledger.usable(0)[late.move.to] == late.move.expert


def test_a_failed_load_undoes_the_round() -> None:
    one, group = begun()
    failed = group.asked.pop()
    assert isinstance(failed, LoadExpert)
    group.take(one.on(MoveFailed(failed.move, "no memory"), 5.0), 5.0)
    finish(one, group, 5.0)
    assert one.last_reason == f"layer 0, expert 0 to rank {failed.move.to.rank}: no memory"
    assert one.ledger.usable(0)[failed.move.to] is None
    one.ledger.check()


def test_a_deadline_during_the_last_switch_changes_nothing() -> None:
    one, group = begun()
    while not any(isinstance(effect, SwitchMap) for effect in group.asked):
        group.take(one.on(group.do(0), 5.0), 5.0)
    group.take(one.on(MoverTick(), 99.0), 99.0)
    assert one.next_wake() is None
    finish(one, group, 99.0)
    assert one.counts == {RebalanceOutcome.DONE: 1}


def test_a_lost_rank_ends_a_rebalance_at_once() -> None:
    one, _ = begun()
    one.abandon("a rank was lost", 5.0)
    assert not one.ledger.busy
    assert one.abandon("a rank was lost", 5.0) == []
    assert (one.last_reason, one.counts) == ("a rank was lost", {RebalanceOutcome.UNDONE: 1})
    assert one.on(MapSwitched(77), 6.0) == []


def test_the_ledger_refuses_what_would_give_wrong_tokens() -> None:
    ledger = SlotLedger(first_map(FOUR, 8))
    with pytest.raises(LedgerError, match="in use by map 1"):
        ledger.begin(0, ExpertSlot(0, 0))
    ledger.begin(0, ExpertSlot(0, 2))
    with pytest.raises(LedgerError, match="being loaded"):
        ledger.begin(0, ExpertSlot(0, 2))
    placed = ((0, 1, 7), *ledger.contents(0)[1:])
    bad = ExpertMap(2, FOUR.slots, (split(placed, (1,) * 8),))
    with pytest.raises(LedgerError, match="does not hold expert 7"):
        ledger.switch(bad)
    ledger.loaded(0, ExpertSlot(0, 2), 7)
    ledger.switch(bad)
    with pytest.raises(LedgerError, match="no newer"):
        ledger.switch(bad)
    masking = ExpertMap(3, FOUR.slots, (split(((None, 1, 7), *placed[1:]), (1,) * 8),))
    with pytest.raises(LedgerError, match="masks experts that have homes"):
        ledger.switch(masking)
    ledger.check()
    ledger.resize((3, 3, 3, 0))
    with pytest.raises(LedgerError, match="not a slot of the group"):
        ledger.check()


class RebalanceMachine(RuleBasedStateMachine):
    """Loads change; moves continue, fail or are late, in any order."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), slots=st.lists(st.integers(1, 3), min_size=2, max_size=4))
    def begin(self, policy: str, slots: list[int]) -> None:
        self.now, shape = 0.0, GroupShape(tuple(slots), (0,) * len(slots))
        self.experts = max(1, sum(slots) - 2)
        self.ledger = SlotLedger(first_map(shape, self.experts, layers=2))
        rules = RebalanceSettings(100, 100.0, min_gain=0.01, lasting_s=1e6, rest_s=1.0, looks=1, deadline_s=20.0)
        self.one = Rebalancer(self.ledger, POLICIES[policy], shape.nodes, rules)
        self.group = RankGroup(self.ledger)

    @rule(tokens=st.lists(st.integers(0, 100), min_size=24, max_size=24))
    def look(self, tokens: list[int]) -> None:
        rows = [tuple(tokens[one : one + self.experts]) for one in (0, 6, 12)]
        plan = self.one.look([tuple(rows), tuple(rows[::-1])], self.now)
        if plan:
            self.group.take(self.one.start(plan, self.now), self.now)

    @precondition(lambda self: self.group.asked)
    @rule(choice=st.integers(0, 99))
    def do(self, choice: int) -> None:
        event = self.group.do(choice % len(self.group.asked))
        self.group.take(self.one.on(event, self.now), self.now)

    @precondition(lambda self: any(not isinstance(one, SwitchMap) for one in self.group.asked))
    @rule(choice=st.integers(0, 99))
    def fail(self, choice: int) -> None:
        able = [one for one in self.group.asked if not isinstance(one, SwitchMap)]
        effect = able[choice % len(able)]
        self.group.asked.remove(effect)
        self.group.take(self.one.on(MoveFailed(effect.move, "failed"), self.now), self.now)  # type: ignore[union-attr]

    @rule(seconds=st.floats(0.1, 15))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.group.take(self.one.on(MoverTick(), self.now), self.now)

    @invariant()
    def all_is_well(self) -> None:
        self.ledger.check()
        self.group.check()
        check_rate(self.group.fetches, 1.0)

    def teardown(self) -> None:
        if hasattr(self, "one"):
            self.now = finish(self.one, self.group, self.now)
            assert sum(self.one.counts.values()) == len(self.group.ended)


TestRebalanceMachine = RebalanceMachine.TestCase
TestRebalanceMachine.settings = hypothesis_settings(
    max_examples=hypothesis_settings().max_examples // 3, stateful_step_count=30
)

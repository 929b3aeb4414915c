"""The one place that decides sizes: what is refused, what holds, what is written down, and what is noticed."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.cluster.gcs_store import KeptValues
from serving.errors import LedgerError
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.fleet_values import Decided, FleetPolled, TargetAccepted, TargetUnanswered
from serving.scaling.core.signals import sizes_of
from serving.values.scaling_operations import HoldPool, ReleasePool, ScaleAnswer, ScalePool, ScaleRefusal
from tests.scaling.core.fleet_case import FleetCase, wanted
from tests.scaling.live.case import DRAINING, FakeCluster, config, deployment, nodes, replica


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_target_by_hand_holds_its_pool(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, manual_hold_s=600.0)
    answer = case.scale("decode", 3)
    assert answer == ScaleAnswer("decode", 1, 3, 3, 600.0, "decode: 1 -> 3; asked for by hand, held for 10 min")
    assert cluster.calls == [("decode", 3)]
    assert case.rows == [("decode", 1, 3, "held", "cli")]
    case.apply(wanted("decode", 3, 2), wanted("prefill", 1, 2))
    assert cluster.calls[1:] == [("prefill", 2)], "the held pool is left alone"
    cluster.now += 601
    case.apply(wanted("decode", 3, 2))
    assert cluster.calls[2:] == [("decode", 2)]


def test_its_own_time_of_holding(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    case.scale("decode", 2, 30.0)
    assert case.held("decode") == (30.0, "cli")
    case.scale("decode", 2, 0.0, "page")
    assert case.held("decode") is None
    assert cluster.calls == [("decode", 2)], "nothing to change the second time"


def test_without_a_policy_nothing_has_to_be_held(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, policy="none")
    case.scale("decode", 2, None, "rest")
    assert case.held("decode") is None


def test_what_does_not_fit_is_refused_with_the_number_that_would(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    refusal = case.scale("decode", 4)
    assert isinstance(refusal, ScaleRefusal)
    assert (refusal.kind, refusal.fits) == ("no_room", 3)
    assert refusal.message == (
        "4 replicas of decode do not fit, 3 would: "
        "an instance needs 4 NPUs whole on one node, at most 2 are free on any then"
    )
    assert cluster.calls == []
    assert case.rows == []


def test_fewer_of_too_many_is_always_possible(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    case.scale("decode", 3)
    cluster.snapshot = replace(cluster.snapshot, nodes=cluster.snapshot.nodes[:1])  # a node is lost
    case.look()
    assert isinstance(case.scale("decode", 2), ScaleAnswer)


@pytest.mark.parametrize(
    ("pool", "replicas", "hold_s", "kind"),
    [
        ("nope", 1, None, "unknown_pool"),
        ("gateway", 1, None, "unknown_pool"),
        ("decode", -1, None, "invalid"),
        ("decode", 385, None, "invalid"),
        ("decode", 1, -1.0, "invalid"),
        ("decode", 1, float("nan"), "invalid"),
        ("decode", 1, 1e9, "invalid"),
    ],
)
def test_nonsense_is_refused(cluster: FakeCluster, pool: str, replicas: int, hold_s: float | None, kind: str) -> None:
    refusal = FleetCase(cluster).scale(pool, replicas, hold_s, "page")
    assert isinstance(refusal, ScaleRefusal)
    assert refusal.kind == kind


def test_a_pool_that_is_not_there_yet(cluster: FakeCluster) -> None:
    cluster.snapshot = replace(cluster.snapshot, deployments={})
    refusal = FleetCase(cluster).scale("decode", 2)
    assert isinstance(refusal, ScaleRefusal)
    assert "not deployed yet" in refusal.message


def test_rays_own_route_may_scale_what_is_no_pool(cluster: FakeCluster) -> None:
    cluster.snapshot = replace(cluster.snapshot, others={"gateway": deployment(1)})
    case = FleetCase(cluster)
    assert isinstance(case.scale("gateway", 2, None, "rest"), ScaleAnswer)
    assert cluster.calls == [("gateway", 2)]
    assert isinstance(case.scale("gateway", 2, None, "page"), ScaleRefusal)


def test_hold_and_release(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, manual_hold_s=600.0)
    held = case.hold("prefill", None)
    assert held == ScaleAnswer("prefill", 1, 1, 6, 600.0, "prefill stays at 1: held for 10 min")
    (_, released) = case.tell(ReleasePool("prefill", "page"))
    assert isinstance(released, ScaleAnswer)
    assert (released.hold_left_s, released.message) == (0.0, "prefill: released")
    again = case.hold("prefill", 0.0)
    assert isinstance(again, ScaleAnswer)
    assert again.message == "prefill: was not held"
    assert [row[3] for row in case.rows] == ["held", "held"], "what changes nothing is not written down"
    assert isinstance(case.hold("nope", 1.0), ScaleRefusal)


# ---- no answer, and past the board -----------------------------------------------------------------------------------


def test_what_serve_does_although_it_did_not_answer_was_not_set_past_the_board(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    cluster.deaf = True
    case.apply(wanted("decode", 1, 2), wanted("prefill", 1, 2))
    cluster.deaf = False
    assert cluster.calls == [], "the second target was not even tried"
    case.look()
    assert case.rows == [], "not done so far"
    cluster.set_past_the_board("decode", 2)
    case.look()
    assert case.rows == [("decode", 1, 2, "burst", "autoscaler")]
    assert case.held("decode") is None
    cluster.set_past_the_board("decode", 1)
    case.look()
    assert case.held("decode") == (600.0, "rest"), "this was somebody else"


def test_a_person_whose_target_comes_late_gets_the_hold_that_was_asked_for(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    cluster.deaf = True
    case.tell(ScalePool("decode", 2, 86400.0, "cli"))
    cluster.deaf = False
    cluster.set_past_the_board("decode", 2)
    case.look()
    assert case.rows == [("decode", 1, 2, "held", "cli")]
    assert case.held("decode") == (86400.0, "cli")


def test_a_target_set_past_the_board_becomes_a_hold(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, manual_hold_s=600.0)
    cluster.set_past_the_board("decode", 2)
    case.look()
    assert case.rows == [("decode", 1, 2, "held", "rest")]
    assert case.held("decode") == (600.0, "rest")
    case.look()
    assert len(case.rows) == 1, "noticed once"


def test_too_much_past_the_board_is_brought_down_to_what_fits(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    cluster.set_past_the_board("decode", 20)
    case.look()
    assert cluster.calls == [("decode", 3)]
    assert case.rows == [("decode", 1, 20, "held", "rest"), ("decode", 20, 3, "fit", "rest")]
    case.look()
    assert len(case.rows) == 2


def test_two_pools_set_past_the_board_at_once_are_both_noticed_though_serve_is_deaf(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    cluster.set_past_the_board("prefill", 30)
    cluster.set_past_the_board("decode", 2)
    cluster.deaf = True
    case.look()
    assert [row[0] for row in case.rows] == ["prefill", "decode"]


def test_nobody_wished_what_the_first_look_finds(cluster: FakeCluster) -> None:
    cluster.set_past_the_board("decode", 2)
    assert FleetCase(cluster).rows == []


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_the_policy_makes_room_before_it_takes_it(cluster: FakeCluster) -> None:
    cluster.place("prefill", *(replica(f"p{i}", "a" if i < 2 else "b") for i in range(6)))
    cluster.set_past_the_board("prefill", 6)
    case = FleetCase(cluster)
    case.apply(wanted("decode", 1, 2), wanted("prefill", 6, 4, ScaleKind.YIELD))
    assert cluster.calls == [("prefill", 4), ("decode", 2)]
    assert case.rows == [("prefill", 6, 4, "yield", "autoscaler"), ("decode", 1, 2, "burst", "autoscaler")]


def test_the_policy_gets_no_more_than_fits(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    case.apply(wanted("decode", 1, 9))
    assert cluster.calls == [("decode", 3)]
    assert case.entries[0].reason == (
        "because; 9 wanted, 3 fit: an instance needs 4 NPUs whole on one node, at most 2 are free on any then"
    )
    case.apply(wanted("decode", 3, 9))
    assert len(case.rows) == 1, "asking again changes nothing"


def test_a_decision_upon_another_target_is_too_late(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    case.scale("decode", 2, 0.0)
    case.apply(wanted("decode", 1, 0), wanted("nope", 1, 2))
    assert cluster.calls == [("decode", 2)]


def test_looks_are_due_sooner_while_replicas_come_or_go(cluster: FakeCluster) -> None:
    periods = [ScalingFleet(config().autoscaler, sizes_of(config())).poll_period_s]
    case = FleetCase(cluster)
    periods.append(case.fleet.poll_period_s)
    case.scale("decode", 2)
    periods.append(case.fleet.poll_period_s)
    cluster.place("decode", replica("d1"), replica("d2"), replica("d0", "b", DRAINING))
    case.look()
    periods.append(case.fleet.poll_period_s)
    assert periods == [0.3, 1.0, 0.3, 0.3], "before the first look; at rest; one starts; one leaves"


# ---- events out of turn, its own death, any order --------------------------------------------------------------------


def test_while_a_target_waits_for_its_answer_only_that_is_taken(cluster: FakeCluster) -> None:
    fleet = FleetCase(cluster).fleet
    with pytest.raises(LedgerError, match="TargetAccepted while no target waits"):
        fleet.on(TargetAccepted(), cluster.now)
    fleet.on(Decided((wanted("decode", 1, 2),)), cluster.now)
    with pytest.raises(LedgerError, match="HoldPool while a target waits"):
        fleet.on(HoldPool("decode", 1.0, "cli"), cluster.now)
    fleet.on(TargetUnanswered(), cluster.now)
    assert fleet.on(HoldPool("decode", 1.0, "cli"), cluster.now)


def test_a_ledger_that_says_something_else_is_found(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    case.fleet.holds.aim("decode", 2)
    with pytest.raises(LedgerError, match="meant was 2"):
        case.fleet.check()
    case.fleet.holds.aim("decode", 1)
    case.fleet.ledger.add(0.0, "decode", 1, 3, ScaleKind.BURST, "never set", "cli")
    with pytest.raises(LedgerError, match="the ledger says 3"):
        case.fleet.check()


def test_a_successor_knows_holds_ledger_and_targets(cluster: FakeCluster) -> None:
    kept = KeptValues()
    FleetCase(cluster, kept).scale("decode", 2, 60.0)
    cluster.set_past_the_board("prefill", 3)  # while there is no board
    again = FleetCase(cluster, kept)
    assert again.rows == [("decode", 1, 2, "held", "cli"), ("prefill", 1, 3, "held", "rest")]
    assert again.held("decode") == (60.0, "cli")


POOLS = st.sampled_from(["prefill", "decode", "kvcache"])


class FleetMachine(RuleBasedStateMachine):
    """Any order of looks, decisions, operators, deaf controllers and nodes that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = FakeCluster()
        self.case = FleetCase(self.cluster, nodes="ray", node_wait_s=5.0, max_decode=5)

    @rule(later_s=st.sampled_from([0.3, 1.0, 6.0]), hosts=st.integers(1, 3))
    def look(self, later_s: float, hosts: int) -> None:
        self.cluster.snapshot = replace(self.cluster.snapshot, nodes=nodes(hosts))
        self.case.look(later_s)

    @rule(pool=POOLS, by=st.integers(-2, 3))
    def decide(self, pool: str, by: int) -> None:
        before = self.cluster.snapshot.deployments[pool].target
        held, calls = self.case.held(pool), len(self.cluster.calls)
        self.case.apply(PoolTarget(pool, before, max(0, before + by), ScaleKind.BURST, "because"))
        assert held is None or len(self.cluster.calls) == calls

    @rule(pool=POOLS, replicas=st.integers(0, 9), hold_s=st.sampled_from([None, 0.0, 4.0]))
    def scale(self, pool: str, replicas: int, hold_s: float | None) -> None:
        refused = any(isinstance(one, ScaleRefusal) for one in self.case.tell(ScalePool(pool, replicas, hold_s, "cli")))
        assert not refused or self.cluster.snapshot.deployments[pool].target != replicas

    @rule(pool=POOLS, replicas=st.integers(0, 30))
    def set_past(self, pool: str, replicas: int) -> None:
        self.cluster.set_past_the_board(pool, replicas)
        self.case.tell(FleetPolled(replace(self.cluster.snapshot, at=self.cluster.now)))

    @rule()
    def turn_deaf_or_hear(self) -> None:
        self.cluster.deaf = not self.cluster.deaf

    @precondition(lambda self: not self.cluster.deaf)
    @invariant()
    def targets_are_those_that_were_set_or_seen(self) -> None:
        self.case.look()
        known = self.case.fleet.snapshot.deployments
        assert {pool: seen.target for pool, seen in known.items()} == {
            pool: seen.target for pool, seen in self.cluster.snapshot.deployments.items()
        }
        chains = [[one for one in reversed(self.case.entries) if one.pool == pool] for pool in known]
        for chain in chains:
            assert all(later.before == earlier.target for earlier, later in pairwise(chain))


FleetMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestFleetMachine = FleetMachine.TestCase

"""The roster: membership, growth of young servers, inheritance of names, and the version of a view."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.ids import NodeId
from serving.kvpool.core.ring import ring_of
from serving.kvpool.core.roster import FOUNDING_S, SEAT_S, PoolRoster
from serving.values.pool_view import NamespaceRecord, ServerRecord, ServerState


def server(name: str, uptime_s: float = 0.0, incarnation: str = "1", **more: object) -> ServerRecord:
    record = ServerRecord(
        name, incarnation, NodeId("n"), "host", 7000, f"/seg/{name}", 1, 1 << 30, ServerState.ACTIVE, uptime_s
    )
    return replace(record, **more)  # type: ignore[arg-type]


def weights(roster: PoolRoster, now: float) -> dict[str, float]:
    return {s.record.name: s.weight for s in roster.view(now).servers}


def roster_with(*records: ServerRecord, now: float = 1000.0) -> PoolRoster:
    roster = PoolRoster()
    for record in records:
        assert roster.announce(record, now)
    return roster


def incarnations(roster: PoolRoster, now: float) -> dict[str, str]:
    return {s.record.name: s.record.incarnation for s in roster.view(now).servers}


def test_an_announced_server_is_there_until_it_is_silent_for_too_long() -> None:
    roster = roster_with(server("b"), server("a"))
    assert list(weights(roster, 1004.9)) == ["a", "b"]
    roster.announce(server("a", 4.9), 1004.9)
    assert list(weights(roster, 1005.0)) == ["a"]
    assert weights(roster, 1009.9) == {}


def test_a_goodbye_counts_at_once_and_a_late_announcement_does_not_undo_it() -> None:
    roster = roster_with(server("a"))
    assert roster.withdraw("a", "1", 1001.0)
    assert not roster.announce(server("a", 1.0), 1001.1)
    assert weights(roster, 1001.2) == {}
    assert roster.announce(server("a", 0.0, "2"), 1001.3)
    assert not roster.withdraw("a", "1", 1001.4)
    assert incarnations(roster, 1001.5) == {"a": "2"}
    assert not roster.withdraw("unknown", "1", 1001.5)


def test_the_latest_facts_are_shown() -> None:
    roster = roster_with(server("a"))
    roster.announce(server("a", 1.0, facts={"entries": 3}), 1001.0)
    assert roster.view(1001.0).servers[0].record.facts == {"entries": 3}


def test_a_lone_server_and_a_pool_that_starts_together_have_full_weight_at_once() -> None:
    assert weights(roster_with(server("a")), 1000.0) == {"a": 1.0}
    together = roster_with(server("a", FOUNDING_S), server("b", 3.0), server("c"))
    assert weights(together, 1000.0) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_a_newcomer_grows_in_eight_steps() -> None:
    roster = roster_with(server("old", 500.0), server("new"))
    seen = []
    for second in range(31):
        roster.announce(server("old", 500.0 + second), 1000.0 + second)
        roster.announce(server("new", float(second)), 1000.0 + second)
        seen.append(weights(roster, 1000.0 + second)["new"])
    assert seen == sorted(seen)
    assert sorted(set(seen)) == [n / 8 for n in range(1, 9)]
    assert seen[0] == 1 / 8
    assert seen[15] == 5 / 8
    assert seen[27] == seen[30] == 1.0


def test_weight_grows_between_announcements_too() -> None:
    roster = PoolRoster(expiry_s=100.0)
    roster.announce(server("old", 500.0), 0.0)
    roster.announce(server("new"), 0.0)
    assert weights(roster, 3.7)["new"] == 1 / 8
    assert weights(roster, 3.8)["new"] == 2 / 8


def test_an_announcement_that_took_long_makes_nobody_younger() -> None:
    roster = roster_with(server("old", 500.0), server("new", 10.0))
    before = weights(roster, 1000.0)["new"]
    roster.announce(server("new", 10.1), 1003.0)
    assert weights(roster, 1003.0)["new"] >= before + 1 / 8


@pytest.mark.parametrize(("ramp_s", "expected"), [(0.0, 1.0), (5.0, 1.0), (60.0, 2 / 8), (600.0, 1 / 8)])
def test_the_ramp_is_as_long_as_told(ramp_s: float, expected: float) -> None:
    roster = PoolRoster(ramp_s=ramp_s)
    roster.announce(server("old", 5000.0), 1000.0)
    roster.announce(server("new", 9.0), 1000.0)
    assert weights(roster, 1000.0)["new"] == expected


def test_a_draining_server_has_no_weight_and_does_not_make_others_newcomers() -> None:
    draining = server("old", 500.0, state=ServerState.DRAINING)
    assert weights(roster_with(draining, server("new")), 1000.0) == {"new": 1.0, "old": 0.0}
    view = roster_with(draining, server("new")).view(1000.0)
    assert ring_of(view).draining == ("old",)


def test_a_replacement_takes_over_at_once() -> None:
    roster = roster_with(server("a", 500.0), server("b", 500.0))
    assert roster.announce(server("a", 0.0, "2"), 1001.0)
    assert incarnations(roster, 1001.0) == {"a": "2", "b": "1"}
    assert weights(roster, 1001.0) == {"a": 1.0, "b": 1.0}


def test_a_replacement_that_comes_after_the_expiry_still_inherits_but_not_for_ever() -> None:
    for pause, expected in ((60.0, 1.0), (SEAT_S + 10.0, 1 / 8)):
        roster = roster_with(server("a", 500.0), server("b", 500.0))
        later = 1000.0 + pause
        roster.announce(server("b", 500.0 + pause), later)
        assert list(weights(roster, later)) == ["b"]
        for second in (0.0, 1.0):
            roster.announce(server("b", 500.0 + pause + second), later + second)
            roster.announce(server("a", second, "2"), later + second)
        assert weights(roster, later + 1.0)["a"] == expected


def test_a_name_that_was_left_with_data_is_inherited_and_one_that_was_drained_is_not() -> None:
    for state, expected in ((ServerState.ACTIVE, 1.0), (ServerState.DRAINING, 1 / 8)):
        roster = roster_with(server("a", 500.0, state=state), server("b", 500.0))
        roster.withdraw("a", "1", 1001.0)
        roster.announce(server("a", 0.0, "2"), 1002.0)
        assert weights(roster, 1002.0)["a"] == expected


def test_a_replacement_of_a_growing_server_goes_on_growing_from_there() -> None:
    roster = roster_with(server("old", 500.0), server("new", 15.0))
    assert weights(roster, 1000.0)["new"] == 5 / 8
    roster.announce(server("new", 0.0, "2"), 1001.0)
    assert weights(roster, 1001.0)["new"] == 5 / 8


def test_of_two_with_one_name_the_later_started_wins_whoever_speaks_first() -> None:
    young, old = server("a", 3.0, "young"), server("a", 90.0, "old")
    for first, second in permutations((young, old)):
        roster = PoolRoster()
        roster.announce(first, 1000.0)
        roster.announce(second, 1000.1)
        for step in range(1, 30):
            now = 1000.0 + step
            assert not roster.announce(server("a", 90.0 + step, "old"), now)
            assert roster.announce(server("a", 3.0 + step, "young"), now)
        assert incarnations(roster, 1029.5) == {"a": "young"}


def test_when_the_later_one_dies_the_other_may_have_the_name_again() -> None:
    roster = roster_with(server("a", 90.0, "old"))
    assert roster.announce(server("a", 0.0, "young"), 1000.5)
    taken = [roster.announce(server("a", 90.0 + step, "old"), 1000.0 + step) for step in range(1, 13)]
    assert taken == sorted(taken)
    assert taken[-1]
    assert incarnations(roster, 1012.0) == {"a": "old"}


def test_two_that_started_together_do_not_take_turns() -> None:
    roster = roster_with(server("a", 1.0, "x"))
    holders = set()
    for step in range(40):
        now = 1000.1 + step / 10
        # Delays differ from one announcement to the next, so either may look younger.
        roster.announce(server("a", 1.0 + step / 10 + (0.1 if step % 4 < 2 else -0.1), "xy"[step % 2]), now)
        if step > 4:
            holders.add(incarnations(roster, now)["a"])
    assert len(holders) == 1


CHANGES = [
    {"host": "other"},
    {"port": 7001},
    {"segment": "/seg/z"},
    {"generation": 2},
    {"capacity_bytes": 1},
    {"node": NodeId("m")},
    {"models": ("m@1",)},
    {"state": ServerState.DRAINING},
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_changes_with_what_clients_act_on(change: dict[str, object]) -> None:
    roster = roster_with(server("a", 500.0))
    before = roster.view(1000.0).version
    roster.announce(replace(server("a", 501.0), **change), 1001.0)  # type: ignore[arg-type]
    changed = roster.view(1001.0).version
    roster.announce(server("a", 502.0), 1002.0)
    assert changed != before == roster.view(1002.0).version


def test_the_version_changes_with_servers_weights_incarnations_and_namespaces_but_not_with_facts_or_time() -> None:
    roster = roster_with(server("a", 500.0))
    versions = [roster.view(1000.0).version]
    roster.announce(server("a", 501.0, facts={"x": 1}), 1001.0)
    assert roster.view(1002.0).version == versions[0]
    roster.announce(server("b"), 1002.0)
    versions.append(roster.view(1002.0).version)
    versions.append(roster.view(1005.8).version)
    roster.announce(server("a", 0.0, "2"), 1005.8)
    versions.append(roster.view(1005.8).version)
    versions.append(roster.view(1005.8, [NamespaceRecord("x")]).version)
    versions.append(roster.view(1005.8, [NamespaceRecord("x", 5)]).version)
    assert len(set(versions)) == len(versions)


def test_namespaces_are_handed_on_by_name() -> None:
    view = PoolRoster().view(0.0, [NamespaceRecord("b", 2), NamespaceRecord("a")])
    assert view.namespaces == (NamespaceRecord("a"), NamespaceRecord("b", 2))


@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.floats(0, 100), min_size=4, max_size=4))
def test_a_lost_roster_is_the_same_again_after_one_round_in_any_order(order: list[str], uptimes: list[float]) -> None:
    records = {name: server(name, uptime) for name, uptime in zip("abcd", uptimes, strict=True)}
    first = roster_with(*records.values())
    again = roster_with(*(records[name] for name in order))
    assert first.view(1000.0) == again.view(1000.0)


def test_a_server_on_a_lost_node_is_gone_and_its_name_goes_to_another_node() -> None:
    """Also if it returns briefly: a host that was cut off and is reachable again."""
    old, new = server("kvcache-0-0", 900.0, node=NodeId("old")), server("kvcache-0-0", 1.0, "2", node=NodeId("new"))
    roster = roster_with(old, server("kvcache-1-0", 900.0, node=NodeId("other")))
    roster.lose(frozenset({NodeId("old")}), 1000.0)
    assert incarnations(roster, 1000.0) == {"kvcache-1-0": "1"}
    assert not roster.announce(old, 1000.0)
    assert roster.announce(new, 1001.0)
    assert not roster.announce(old, 1001.0)
    assert incarnations(roster, 1001.0) == {"kvcache-0-0": "2", "kvcache-1-0": "1"}
    assert weights(roster, 1001.0)["kvcache-0-0"] == 1.0, "it inherits the place of the lost one"


def test_it_knows_when_time_alone_changes_the_view() -> None:
    roster = roster_with(server("old", 100.0), server("young"))
    assert roster.next_change((), 1000.0) == 1000.0 + 30.0 / 8
    assert roster.next_change(("old",), 1001.0) == 1000.0 + 30.0 / 8
    roster.announce(server("old", 103.0), 1003.0)
    assert roster.next_change(("young", "old"), 1004.0) == 1005.0
    roster = roster_with(server("old", 100.0), server("young", 28.0))
    assert roster.next_change((), 1000.0) is None
    assert roster.next_change(("young",), 1000.0) == 1005.0


def test_of_two_servers_that_began_at_one_moment_the_one_heard_later_has_the_name() -> None:
    roster = roster_with(server("a"))
    assert roster.announce(server("a", incarnation="2"), 1000.0)
    assert not roster.announce(server("a"), 1000.0)
    assert incarnations(roster, 1000.0) == {"a": "2"}

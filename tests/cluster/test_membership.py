"""Entries of the membership, and their expiry."""

import math
from dataclasses import replace
from typing import Any

from serving.cluster.membership import (
    ANNOUNCE_PERIOD_S,
    EXPIRY_S,
    IDLE_PERIOD_S,
    Member,
    Roster,
    announce_pause_s,
    with_disk,
)
from serving.ids import NodeId, ReplicaId


def member(replica: str, **more: Any) -> Member:
    fields: dict[str, Any] = {"pool": "decode", "port": 1, "incarnation": "first", **more}
    return Member(ReplicaId(replica), node=NodeId("n"), host="127.0.0.1", facts={}, **fields)


def test_members_come_sorted_by_pool_and_name() -> None:
    roster = Roster()
    for replica, pool in (("b", "prefill"), ("c", "decode"), ("a", "prefill")):
        roster.announce(member(replica, pool=pool), now=0.0)
    assert [(m.pool, m.replica) for m in roster.members(1.0)] == [("decode", "c"), ("prefill", "a"), ("prefill", "b")]


def test_who_stops_announcing_vanishes() -> None:
    roster = Roster()
    roster.announce(member("a"), now=0.0)
    roster.announce(member("b"), now=0.0)
    roster.announce(member("a"), now=3.0)
    assert [m.replica for m in roster.members(EXPIRY_S - 0.1)] == ["a", "b"]
    assert [m.replica for m in roster.members(EXPIRY_S)] == ["a"]
    assert roster.members(3.0 + EXPIRY_S) == []
    assert roster.members(0.0) == [], "gone for good, not hidden"


def test_a_restarted_replica_replaces_its_predecessor() -> None:
    roster = Roster()
    roster.announce(member("a", port=1), now=0.0)
    roster.announce(member("a", port=2, incarnation="second"), now=1.0)
    assert [(m.port, m.incarnation) for m in roster.members(2.0)] == [(2, "second")]


def test_who_says_goodbye_is_gone_at_once() -> None:
    roster = Roster(expiry_s=100.0)
    roster.announce(member("a"), now=0.0)
    roster.withdraw(ReplicaId("a"))
    roster.withdraw(ReplicaId("never there"))
    assert roster.members(0.0) == []


def test_only_who_comes_moves_or_leaves_is_news() -> None:
    roster = Roster()
    seen = [roster.version]

    def news() -> bool:
        seen.append(roster.version)
        return seen[-1] != seen[-2]

    roster.announce(member("a"), now=0.0)
    assert news()
    roster.announce(member("a"), now=1.0)
    assert not news(), "refreshed facts"
    roster.announce(member("a", incarnation="second"), now=2.0)
    assert news()
    roster.withdraw(ReplicaId("never there"))
    assert not news()
    roster.withdraw(ReplicaId("a"))
    assert news()


def test_nobody_is_listed_on_a_node_that_ray_has_given_up() -> None:
    """Processes of a host that was cut off and is reachable again announce themselves until they notice."""
    roster = Roster()
    roster.announce(member("old"), now=0.0)
    roster.announce(replace(member("new"), node=NodeId("m")), now=0.0)
    before = roster.version
    roster.lose(frozenset({NodeId("n")}))
    assert roster.version == before + 1, "readers are told at once"
    roster.announce(member("old"), now=1.0)
    assert [one.replica for one in roster.members(1.0)] == ["new"]
    assert roster.version == before + 1


def test_a_member_tells_of_its_hosts_full_disk() -> None:
    assert with_disk(member("a"), lambda: "full").facts == {"disk_full": "full"}
    assert with_disk(member("a")).facts == {"disk_full": ""}, "not known without Ray"


def test_who_changes_by_time_alone_announces_less_often() -> None:
    one = replace(member("a"), facts={"told_s": 1.0, "running": 0})
    assert announce_pause_s(None, one) == ANNOUNCE_PERIOD_S
    assert announce_pause_s(one, replace(one, facts={"told_s": 2.0, "running": 0})) == IDLE_PERIOD_S
    for changed in (replace(one, facts={"told_s": 1.0, "running": 1}), replace(one, port=2)):
        assert announce_pause_s(one, changed) == ANNOUNCE_PERIOD_S


def test_the_first_expiry_is_known() -> None:
    roster = Roster()
    assert roster.lasts_s(0.0) == math.inf
    roster.announce(member("a"), now=0.0)
    roster.announce(member("b"), now=1.0)
    assert roster.lasts_s(2.0) == EXPIRY_S - 2.0

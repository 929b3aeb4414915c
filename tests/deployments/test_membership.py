"""Who is listed, and for how long."""

import asyncio
import threading
from typing import Any

import pytest

from serving.deployments import membership
from serving.deployments.membership import EXPIRY_S, Lookup, Member, Roster
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


def test_however_often_a_silent_ray_is_asked_for_an_actor_one_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CALL_DEADLINE_S", 0.01)
    back, asked = threading.Event(), []

    def find() -> str:
        asked.append(threading.get_ident())
        back.wait(30.0)
        return "the actor"

    async def scene() -> None:
        lookup = Lookup(find)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await lookup.actor()
        back.set()
        monkeypatch.setattr(membership, "CALL_DEADLINE_S", 30.0)
        assert await lookup.actor() == "the actor"

    asyncio.run(scene())
    assert len(asked) == 1

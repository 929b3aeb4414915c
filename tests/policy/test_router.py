"""Instance choice: least work, most room, fair ties, never a dead one."""

from collections import Counter

import pytest

from serving.errors import UnavailableError
from serving.ids import NodeId, ReplicaId
from serving.policy.router import InstanceView, route_decode, route_prefill


def view(name: str, queued: int = 0, sequences: int = 0, free: int = 100, **more: float) -> InstanceView:
    return InstanceView(ReplicaId(name), "p", NodeId("n"), queued, sequences, free, 100, **more)  # type: ignore[arg-type]


def test_prefill_goes_where_the_least_work_waits() -> None:
    views = [view("a", 500), view("b", 100), view("c", 300)]
    decision = route_prefill(views, 40, 0, 5.0)
    assert decision.replica == "b"
    assert "100 + 40 uncached tokens" in decision.reason


def test_what_was_sent_since_the_view_counts() -> None:
    views = [view("a", 100, reserved_tokens=500), view("b", 300)]
    assert route_prefill(views, 1, 0, 5.0).replica == "b"
    views = [view("a", sequences=0, reserved_sequences=3), view("b", sequences=2)]
    assert route_decode(views, 1, 0, 5.0).replica == "b"
    views = [view("a", free=50, reserved_blocks=45), view("b", sequences=9, free=10)]
    assert route_decode(views, 8, 0, 5.0).replica == "b"


def test_equal_instances_share_evenly() -> None:
    views = [view("c"), view("a"), view("b"), view("d", 1, 1)]
    assert Counter(route_prefill(views, 1, n, 5.0).replica for n in range(30)) == {"a": 10, "b": 10, "c": 10}
    assert Counter(route_decode(views, 1, n, 5.0).replica for n in range(30)) == {"a": 10, "b": 10, "c": 10}
    full = [view("a", free=0), view("b", free=0)]
    assert Counter(route_decode(full, 1, n, 5.0).replica for n in range(30)) == {"a": 15, "b": 15}


def test_decode_needs_room_first_then_few_sequences_then_the_most_room() -> None:
    views = [view("a", sequences=0, free=3), view("b", sequences=5, free=50), view("c", sequences=5, free=60)]
    decision = route_decode(views, 4, 0, 5.0)
    assert decision.replica == "c"
    assert "room for 4 blocks (60 free), 5 sequences" in decision.reason


def test_without_room_anywhere_the_roomiest_waits() -> None:
    decision = route_decode([view("a", free=3), view("b", sequences=9, free=7)], 8, 0, 5.0)
    assert decision.replica == "b"
    assert "none of 2 has 8 free blocks" in decision.reason


def test_excluded_instances_are_the_last_resort() -> None:
    views = [view("a"), view("b", 999, 9)]
    for route in (route_prefill, route_decode):
        assert route(views, 1, 0, 5.0, {ReplicaId("a")}).replica == "b"
        assert route(views, 1, 0, 5.0, {ReplicaId("a"), ReplicaId("b")}).replica == "a"


def test_draining_and_silent_instances_are_no_choice() -> None:
    views = [view("a", draining=True), view("b", age_s=6.0)]
    for route in (route_prefill, route_decode):
        with pytest.raises(UnavailableError, match="2 known, 1 draining") as caught:
            route(views, 1, 0, 5.0)
        assert caught.value.retry_after_s > 0
        assert route([*views, view("c", 9, 9)], 1, 0, 5.0).replica == "c"

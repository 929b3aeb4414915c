"""Instance choice: least work, most capacity, fair ties, never a dead one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.core.gateway_router import GatewayRouter
from serving.gateway.core.route_decision import InstanceView, RouteTurn, Rule
from serving.gateway.core.router import route_decode, route_prefill
from serving.ids import NodeId, ReplicaId
from serving.values.prefix_hash import prefix_hashes


def view(name: str, queued: int = 0, sequences: int = 0, free: int = 100, **more: float) -> InstanceView:
    return InstanceView(ReplicaId(name), "p", NodeId("n"), queued, sequences, free, 100, **more)  # type: ignore[arg-type]


def test_prefill_goes_where_the_least_work_waits() -> None:
    views = [view("a", 500), view("b", 100), view("c", 300)]
    decision = route_prefill(views, 40, 0, 5.0)
    assert decision.replica == "b"
    assert decision.reason == "100 + 40 uncached tokens, the least of 3 in pool p, next 340 tokens"


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
    assert decision.reason == (
        "room for 4 blocks (60 free), 5 sequences, load 1.89, the least of 2 with room in pool p, next 2.11"
    )


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


def test_a_slow_instance_gets_less_but_never_nothing() -> None:
    views = [view("fast", 300, tokens_per_s=100.0), view("slow", 200, tokens_per_s=40.0)]
    decision = route_prefill(views, 10, 0, 5.0)
    assert decision.replica == "fast"
    assert "300 + 10 uncached tokens in 3.100 s" in decision.reason
    stuck = [view("fast", 1000, tokens_per_s=100.0), view("stuck", 100, tokens_per_s=0.001)]
    assert route_prefill(stuck, 10, 0, 5.0).replica == "stuck", "nobody is taken for slower than a quarter of the mean"
    unknown = [view("new", 100), view("fast", 300, tokens_per_s=100.0)]
    assert route_prefill(unknown, 10, 0, 5.0).replica == "new"
    small = [view("a", 100, tokens_per_s=60.0), view("b", 110, tokens_per_s=100.0), view("c", 120, tokens_per_s=110.0)]
    assert route_prefill(small, 10, 0, 5.0).replica == "a", "it had small steps lately, that is all"


def test_who_asks_for_fewer_sequences_gets_them_but_never_none() -> None:
    """Ranks that are slower than their peers request fewer."""
    inside, free = {"a": 0, "b": 0, "c": 0}, {"a": 100, "b": 100, "c": 100}
    for turn in range(50):
        views = [
            view(name, sequences=inside[name], free=free[name], share=0.5 if name == "c" else 1.0) for name in free
        ]
        chosen = str(route_decode(views, 1, turn, 5.0).replica)
        inside[chosen] += 1
        free[chosen] -= 1
    assert inside == {"a": 20, "b": 20, "c": 10}
    assert route_decode([view("a", share=0.0)], 1, 0, 5.0).replica == "a"


def test_nearly_equal_instances_take_turns_and_gateways_begin_elsewhere() -> None:
    views = [view("a", 1000), view("b", 1030), view("c", 1200)]
    assert Counter(route_prefill(views, 1, n, 5.0).replica for n in range(20)) == {"a": 10, "b": 10}
    firsts = {route_prefill(views, 1, RouteTurn(1, seed), 5.0).replica for seed in range(4)}
    assert firsts == {"a", "b"}
    assert ", 2 equal" in route_prefill(views, 1, 0, 5.0).reason


def test_what_this_gateway_sent_counts_for_every_gateway() -> None:
    views = [view("a", 0, reserved_tokens=100, gateways=4), view("b", 300, gateways=4)]
    assert route_prefill(views, 1, 0, 5.0).replica == "b"
    views = [view("a", free=50, reserved_blocks=5, promised_blocks=6, gateways=4), view("b", sequences=9, free=20)]
    assert route_decode(views, 8, 0, 5.0).replica == "b"


def test_decode_weighs_kv_against_sequences() -> None:
    long, short = view("long", sequences=10, free=10), view("short", sequences=12, free=90)
    assert route_decode([long, short], 1, 0, 5.0).replica == "short", "attention reads all of the KV in every step"
    assert route_decode([view("a", sequences=10, free=50), view("b", sequences=20, free=52)], 1, 0, 5.0).replica == "a"


def test_the_baselines() -> None:
    views = [view("a", 900, 9), view("b"), view("c", 500, 5), view("d", 100, 1)]
    for route in (route_prefill, route_decode):
        turns = Counter(route(views, 1, n, 5.0, (), "round_robin").replica for n in range(40))
        assert turns == {"a": 10, "b": 10, "c": 10, "d": 10}
        drawn = Counter(str(route(views, 1, n, 5.0, (), "power_of_two").replica) for n in range(600))
        assert drawn["b"] == pytest.approx(300, abs=40), "the least of all wins whenever it is drawn"
        assert drawn["d"] == pytest.approx(200, abs=40)
        assert drawn["c"] == pytest.approx(100, abs=40)
        assert drawn["a"] == 0
        assert route(views[:1], 1, 3, 5.0, (), "power_of_two").replica == "a"


def on(host: str, name: str, sequences: int, free: int = 100, share: float = 1.0) -> InstanceView:
    return replace(view(name, sequences=sequences, free=free), node=NodeId(host), share=share)


def test_the_prompts_host_comes_first_among_equals_only() -> None:
    views = [on("left", "a", 20), on("right", "b", 20), on("right", "c", 20)]
    for turn in range(6):
        assert route_decode(views, 1, turn, 5.0, host=NodeId("left")).replica == "a"
    right = Counter(route_decode(views, 1, turn, 5.0, host=NodeId("right")).replica for turn in range(30))
    assert right == {"b": 15, "c": 15}
    assert route_decode(views, 1, 0, 5.0, host=NodeId("right")).reason == (
        "room for 1 blocks (100 free), 20 sequences, load 1.00, "
        "the least of 3, 3 equal, 2 on the prompt's host with room in pool p, next 1.00"
    )
    busier = [on("left", "a", 22), *views[1:]]
    assert {route_decode(busier, 1, turn, 5.0, host=NodeId("left")).replica for turn in range(6)} == {"b", "c"}
    full = [on("left", "a", 20, free=0), *views[1:]]
    assert {route_decode(full, 1, turn, 5.0, host=NodeId("left")).replica for turn in range(6)} == {"b", "c"}


instances = st.builds(
    on,
    st.sampled_from(["left", "right", "third"]),
    st.uuids().map(str),
    st.integers(0, 30),
    free=st.integers(0, 100),
    share=st.sampled_from([1.0, 0.5]),
)


@given(
    views=st.lists(instances, min_size=1, max_size=8),
    blocks=st.integers(1, 100),
    turn=st.integers(0, 99),
    host=st.sampled_from([NodeId("left"), NodeId("elsewhere")]),
    rule=st.sampled_from(["load", "round_robin", "power_of_two"]),
)
def test_a_preferred_host_changes_nothing_but_which_of_the_equals(
    views: list[InstanceView], blocks: int, turn: int, host: NodeId, rule: Rule
) -> None:
    """Every instance chosen for its host could have been chosen in another turn."""
    preferred = route_decode(views, blocks, turn, 5.0, (), rule, host)
    plain = [route_decode(views, blocks, other, 5.0, (), rule) for other in range(turn, turn + len(views))]
    assert preferred.replica in {one.replica for one in plain}
    if rule != "load" or not any(one.node == host for one in plain):
        assert preferred == plain[0]
    elif max(view.kv_blocks_free for view in views) >= blocks:
        assert preferred.node == host


def test_a_router_prefers_hosts_only_where_it_was_told_to() -> None:
    views = [on("left", "a", 20), on("right", "b", 20)]
    for prefers, wanted in ((True, {"b": 10}), (False, {"a": 5, "b": 5})):
        router = GatewayRouter(10.0, 16, prefer_host=prefers)
        assert Counter(router.decode(views, 1, (), NodeId("right")).replica for _ in range(10)) == wanted


BOTH = (view("a"), view("b"))
PROMPT = prefix_hashes(range(64), 16)


def test_equal_instances_take_turns_in_each_role() -> None:
    router = GatewayRouter(10.0, 16)
    assert not router.wants_hashes
    chosen = [(router.prefill(BOTH, 64).replica, router.decode(BOTH, 4).replica) for _ in range(4)]
    assert chosen == [("b", "b"), ("a", "a")] * 2


def test_a_prompt_follows_its_beginning_until_its_instance_is_gone() -> None:
    router = GatewayRouter(10.0, 16, history_blocks=100)
    assert router.wants_hashes
    first = router.prefill(BOTH, 64, hashes=PROMPT).replica
    other = next(one for one in BOTH if one.replica != first)
    assert [router.prefill(BOTH, 64, hashes=PROMPT).replica for _ in range(3)] == [first] * 3
    assert router.prefill([other], 64, hashes=PROMPT).replica == other.replica
    decision = router.prefill([view(first)], 64, hashes=PROMPT)
    assert decision.reason.startswith("4 of 4 blocks"), "it was only closed to one prompt, and has its cache"
    router.forget(ReplicaId(first))
    decision = router.prefill([view(first)], 64, hashes=PROMPT)
    assert decision.reason.startswith("0 of 4 blocks"), "it came back without its cache"


def test_a_router_avoids_what_is_excluded_and_takes_silent_instances_for_dead() -> None:
    avoid = (ReplicaId("b"),)
    for history in (0, 10):
        router = GatewayRouter(10.0, 16, history)
        assert [router.prefill(BOTH, 1, avoid).replica, router.decode(BOTH, 1, avoid).replica] == ["a", "a"]
        for route in (router.prefill, router.decode):
            with pytest.raises(UnavailableError):
                route([view("a", age_s=10.1)], 1)


def test_what_the_pool_probably_has_is_not_booked_as_work() -> None:
    router = GatewayRouter(10.0, 16, history_blocks=100, rule="load", attention_tokens=1000.0)
    first = router.prefill(BOTH, 70, hashes=PROMPT)
    assert first.tokens == 70 + round(70 * 35 / 1000)
    again = router.prefill(BOTH, 70, hashes=PROMPT)
    assert again.tokens == 6 + round(6 * (64 + 3) / 1000)
    assert again.replica != first.replica, "it is in the pool, not in an instance: everybody reaches it alike"


@pytest.mark.parametrize("rule", ["round_robin", "power_of_two", "load"])
def test_two_gateways_with_one_history_of_questions_decide_alike(rule: Rule) -> None:
    views = [view(name, queued=n) for n, name in enumerate("abcdef")]
    made = [GatewayRouter(10.0, 16, rule=rule, seed=seed) for seed in (5, 5, 6)]
    chosen = [[(r.prefill(views, 9).replica, r.decode(views, 1).replica) for _ in range(30)] for r in made]
    assert chosen[0] == chosen[1]
    if rule != "load":
        assert chosen[0] != chosen[2]

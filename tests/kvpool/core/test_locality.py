"""Locality: follow the prefix while that is less work, forget old ones, never choose a dead instance."""

from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError, UnavailableError
from serving.gateway.core.gateway_router import PrefixHistory, route_prefill_by_locality
from serving.gateway.core.route_decision import InstanceView, RouteDecision
from serving.ids import BlockHash, NodeId, ReplicaId

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
PROMPT = [BlockHash(bytes([n]) * 16) for n in range(10)]


def view(name: str, queued: int = 0, **more: float) -> InstanceView:
    return InstanceView(ReplicaId(name), "p", NodeId(f"node-{name}"), queued, 0, 1, 1, **more)  # type: ignore[arg-type]


def route(views: list[InstanceView], history: PrefixHistory, tie: int = 0, tokens: int = 165) -> RouteDecision:
    return route_prefill_by_locality(views, PROMPT, 16, tokens, history, tie, 5.0)


def history_of(**sent: int) -> PrefixHistory:
    history = PrefixHistory(100)
    for name, blocks in sent.items():
        history.note(ReplicaId(name), PROMPT[:blocks])
    return history


def test_matches_are_leading_blocks_of_the_same_instance() -> None:
    history = PrefixHistory(100)
    history.note(A, PROMPT[:3])
    history.note(A, PROMPT[4:])
    history.note(B, PROMPT)
    assert [history.matched(r, PROMPT) for r in (A, B, C)] == [3, 10, 0]
    assert history.matched(A, []) == 0


def test_an_instance_that_left_is_forgotten() -> None:
    history = history_of(a=5, b=6)
    history.forget(A)
    history.forget(C)
    assert [history.matched(r, PROMPT) for r in (A, B)] == [0, 6]


def test_a_full_history_forgets_the_end_of_the_oldest_prompt_first() -> None:
    history = PrefixHistory(12)
    history.note(A, PROMPT)
    history.note(A, [BlockHash(bytes([100 + n]) * 16) for n in range(5)])
    assert history.matched(A, PROMPT) == 7


def test_a_history_without_room_is_a_bug() -> None:
    with pytest.raises(LedgerError, match="at least one block"):
        PrefixHistory(0)


@given(st.integers(1, 8), st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=20))
def test_the_history_is_an_lru_of_so_many_blocks(blocks: int, prompts: list[list[int]]) -> None:
    history, model = PrefixHistory(blocks), OrderedDict[int, None]()
    for prompt in prompts:
        history.note(A, [BlockHash(bytes([n])) for n in prompt])
        for n in reversed(prompt):
            model.pop(n, None)
            model[n] = None
        while len(model) > blocks:
            model.popitem(last=False)
        assert {n for n in range(13) if history.matched(A, [BlockHash(bytes([n]))])} == set(model)


def test_a_prompt_goes_where_most_of_it_is_cached() -> None:
    decision = route([view("a"), view("b"), view("c")], history_of(a=2, b=8))
    assert (decision.replica, decision.node) == (B, "node-b")
    assert decision.reason == (
        "8 of 10 blocks probably cached there, 0 + 37 uncached tokens, the least of 3 in pool p, next 133 tokens"
    )


def test_locality_is_followed_until_the_queue_outweighs_it() -> None:
    history = history_of(a=10)
    assert route([view("a", 160), view("b")], history, tie=0).replica == A
    assert {route([view("a", 160), view("b")], history, tie).replica for tie in (0, 1)} == {A, B}
    assert route([view("a", 161), view("b")], history).replica == B
    assert route([view("a", 100, reserved_tokens=61), view("b")], history).replica == B


def test_without_any_history_load_decides_and_ties_are_shared() -> None:
    empty = PrefixHistory(1)
    assert route([view("a", 5), view("b")], empty).replica == B
    shares = Counter(route([view("a"), view("b"), view("c", 1)], empty, tie).replica for tie in range(10))
    assert shares == {A: 5, B: 5}
    assert ", 2 equal" in route([view("a"), view("b")], empty).reason


def test_a_prompt_that_is_cached_whole_still_computes_a_token() -> None:
    assert "0 + 1 uncached tokens" in route([view("a")], history_of(a=10), tokens=160).reason
    assert "0 + 0 uncached tokens" in route([view("a")], history_of(a=10), tokens=0).reason


def test_dead_draining_and_failed_instances_are_no_choice() -> None:
    history = history_of(a=10, b=10)
    views = [view("a", draining=True), view("b", age_s=6.0)]
    with pytest.raises(UnavailableError, match="2 known, 1 draining"):
        route(views, history)
    assert route([*views, view("c", 10_000)], history).replica == C
    decision = route_prefill_by_locality([view("a"), view("c", 99)], PROMPT, 16, 165, history, 0, 5.0, {A})
    assert decision.replica == C

"""What a gateway's router remembers between two questions."""

import pytest

from serving.errors import UnavailableError
from serving.gateway.core.gateway_router import GatewayRouter
from serving.gateway.core.route_decision import InstanceView, Rule
from serving.ids import NodeId, ReplicaId
from serving.values.prefix_hash import prefix_hashes


def view(name: str, *, queued: int = 0, age_s: float = 0.0) -> InstanceView:
    return InstanceView(ReplicaId(name), "pool", NodeId("n"), queued, 0, 100, 100, age_s=age_s)


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


def test_excluded_instances_are_avoided() -> None:
    router = GatewayRouter(10.0, 16)
    avoid = (ReplicaId("b"),)
    assert [router.prefill(BOTH, 1, avoid).replica, router.decode(BOTH, 1, avoid).replica] == ["a", "a"]


@pytest.mark.parametrize("history", [0, 10])
def test_silent_instances_are_dead(history: int) -> None:
    router = GatewayRouter(10.0, 16, history)
    silent = [view("a", age_s=10.1)]
    with pytest.raises(UnavailableError):
        router.prefill(silent, 1)
    with pytest.raises(UnavailableError):
        router.decode(silent, 1)


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

"""The gateway's queue in virtual time: bounds, deadlines, waiting for an instance; several gateways on stale views."""

from collections import Counter

import pytest

from serving.config.gateway import Routing
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.supernode import Supernode
from tests.virtual.core.case import burst, config, workload


def come_up(node: Supernode, at_s: float) -> None:
    """An instance of each kind starts later."""

    def start(pool: str) -> None:
        node.start_instance(pool)

    for pool in ("prefill", "decode"):
        node.queue.at(at_s, start, pool)


def outcomes(result: SimResult) -> Counter[Outcome]:
    return Counter(Outcome(one) for one in result.requests.outcome)


def test_a_full_gateway_refuses_and_a_deadline_ends_the_wait() -> None:
    limits = {"max_running_sequences": 4, "max_queued_requests": 6}
    result = simulate(config(gateway=limits), workload([(0.0, 2000, 20)] * 30), check=True)
    assert outcomes(result) == {Outcome.FINISHED: 10, Outcome.REJECTED: 20}
    assert "are queued, the limit is 6" in next(one.reason for one in result.decisions if one.kind == "reject")
    hurry = {"max_running_sequences": 1, "request_timeout_s": 3.0}
    result = simulate(config(gateway=hurry), workload([(0.0, 2000, 100)] * 8), check=True)
    ended = outcomes(result)
    assert ended[Outcome.FINISHED] >= 1
    assert ended[Outcome.FAILED] == 8 - ended[Outcome.FINISHED] > 0
    late = [one for one in result.decisions if one.kind == "fail"]
    assert any("still waiting for its turn" in one.reason for one in late)
    assert all(3.0 <= one.at_s < 3.1 for one in late)


def test_without_an_instance_requests_wait_so_long_and_no_longer() -> None:
    settings = config(gateway={"role_wait_s": 5.0})
    node = Supernode(settings, cost_model(settings), 1)
    node.feed(workload([(0.0, 1000, 10), (4.0, 1000, 10), (4.5, 1000, 10)]))
    come_up(node, 8.0)
    node.queue.run(60.0, 100_000)
    ended = [Outcome(one) for one in node.book.rows.outcome]
    assert ended == [Outcome.FAILED, Outcome.FINISHED, Outcome.FINISHED]
    assert 8.0 < node.book.rows.first_token_s[1] < 9.0


def test_those_that_wait_while_all_instances_go_start_when_one_comes_back() -> None:
    settings = config(gateway={"max_running_sequences": 1, "role_wait_s": 3.0})
    node = Supernode(settings, cost_model(settings), 1)
    node.start_instance("prefill")
    node.start_instance("decode")
    node.feed(workload([(0.0, 4000, 2000), (0.0, 1000, 10)]))

    def all_go(_: object) -> None:
        for instance in list(node.everyone):
            instance.die()
            node.stop_instance(instance)

    node.queue.at(1.0, all_go)
    come_up(node, 2.5)
    node.queue.run(60.0, 100_000)
    assert [Outcome(one) for one in node.book.rows.outcome] == [Outcome.FINISHED, Outcome.FINISHED]
    assert node.book.rows.attempts[0] == 2, "a stream that has begun waits for the replacement of its instance"
    assert node.book.rows.first_token_s[1] > node.book.rows.finish_s[0]


@pytest.mark.parametrize("routing", ["load", "power_of_two", "round_robin", "locality"])
def test_four_gateways_share_a_burst_evenly(routing: Routing) -> None:
    settings = config(
        gateway={"routing": routing, "replicas": 4},
        prefill={"replicas": 8},
        kvcache={"replicas": 0},
        simulation={"status_period_s": 5.0},
    )
    result = simulate(settings, burst(200, 1000, 1, every_s=1e-4), check=True)
    sent = Counter(one.choice for one in result.decisions if one.kind == "route prefill")
    assert sum(sent.values()) == 200
    assert max(sent.values()) <= 1.3 * 200 / 8


def test_two_gateways_do_not_choose_the_same_idle_instance() -> None:
    """Each reported change reaches both: with regular reports alone prompts of two gateways waited for each other."""
    settings = config(
        gateway={"replicas": 2}, prefill={"replicas": 2}, kvcache={"replicas": 0}, simulation={"status_period_s": 60.0}
    )
    pairs = [(10.0 * pair + offset, 8192, 1) for pair in range(8) for offset in (0.0, 0.05)]
    rows = simulate(settings, workload(pairs), check=True).requests
    waited = [first - arrival for arrival, first in zip(rows.arrival_s, rows.first_token_s, strict=True)]
    assert max(waited) == pytest.approx(min(waited))


@pytest.mark.parametrize("routing", ["load", "power_of_two"])
def test_every_rule_is_the_same_again(routing: Routing) -> None:
    settings = config(gateway={"routing": routing, "replicas": 2}, prefill={"replicas": 3})
    first, second = (simulate(settings, burst(60)) for _ in range(2))
    assert first.requests == second.requests
    assert first.decisions == second.decisions

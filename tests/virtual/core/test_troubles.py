"""Faults in virtual time: every kind occurs, is recorded with its cost, and loses no request that could be saved."""

import math

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream
from tests.virtual.core.case import burst, config, mean_tpot, workload

LOAD = 60


def fault(kind: FaultKind, target: str, duration_s: float = 5.0, factor: float = 0.0, at_s: float = 1.0) -> Fault:
    return Fault(Seconds(at_s), kind, target, Seconds(duration_s), factor)


def run(*faults: Fault, load: RequestStream | None = None, **sections: dict[str, object]) -> SimResult:
    return simulate(config(**sections), load or burst(LOAD, output=200), faults=faults, check=True)


def mean_ttft(result: SimResult) -> float:
    rows = result.requests
    return sum(b - a for a, b in zip(rows.arrival_s, rows.first_token_s, strict=True)) / len(rows)


# Six prefill instances of two nodes each come first: nodes 0 to 11; decode follows on nodes 12 to 31.
DECODE_DIE = "n12.npu0.die0"
CASES = [
    fault(FaultKind.DIE, DECODE_DIE),
    fault(FaultKind.NPU, "n0.npu0"),
    fault(FaultKind.NODE, "n0", 30.0),
    fault(FaultKind.RDMA_LINK, "n0.npu0.die0", 5.0, 0.01),
    fault(FaultKind.RDMA_LINK, "n0.npu0.die0", 5.0, 0.0),
    fault(FaultKind.UB_SUBPLANE, "sn0.subplane3"),
    fault(FaultKind.STRAGGLER, DECODE_DIE, 5.0, 3.0),
    fault(FaultKind.HBM, DECODE_DIE, 0.0, 1.0),
    fault(FaultKind.MEMORY_SERVER, "memory1"),
    fault(FaultKind.NETWORK_GLITCH, "sn0", 0.0, 4.0),
    fault(FaultKind.LAUNCH_JITTER, "n12", 0.5),
    fault(FaultKind.VPC_CARD, "n0"),
]


@pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one.kind}-{one.factor:g}")
def test_no_request_is_lost_to_a_fault_that_leaves_both_roles(one: Fault) -> None:
    result = run(one)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * LOAD
    assert sum(result.requests.output_tokens) == 200 * LOAD
    (record,) = result.faults
    assert (record.kind, record.target, record.at_s) == (one.kind.value, one.target, 1.0)
    assert result.decision_counts["fault"] == 1


def test_what_was_on_a_lost_die_is_computed_again_once_it_is_rebuilt() -> None:
    result = run(*(fault(FaultKind.HBM, f"n{12 + n // 16}.npu{n % 16 // 2}.die{n % 2}", 0.0, 1.0) for n in range(40)))
    hit = sum(one.sequences_hit for one in result.faults)
    assert hit > 0
    assert sum(one.tokens_lost for one in result.faults) > 4096 * hit * 0.9
    assert sum(result.requests.attempts) == LOAD + hit
    totals = result.totals
    assert totals.tokens_computed + totals.tokens_cached > totals.prompt_tokens_in
    assert totals.tokens_generated >= totals.tokens_out - LOAD - hit
    calm, stopped = run(), run(fault(FaultKind.DIE, DECODE_DIE))
    assert sum(at < 5.0 for at in calm.requests.finish_s) > 20
    assert min(stopped.requests.finish_s) > 1.0 + 12.8
    assert max(stopped.requests.finish_s) < 1.0 + 12.8 + max(calm.requests.finish_s)
    assert stopped.faults[0].npu_seconds_lost == pytest.approx(12.8 * 160)


def test_a_lost_node_takes_its_instances_and_they_come_back() -> None:
    result = run(fault(FaultKind.NODE, "n0", 200.0), load=burst(300, output=20, every_s=0.5))
    names = [one.name for one in result.instances if one.pool == "prefill"]
    assert len(names) == 7
    gone = [one for one in result.instances if math.isfinite(one.stopped_s)]
    assert [one.name for one in gone] == ["prefill-0"]
    again = next(one for one in result.instances if one.name == "prefill-6")
    assert again.started_s == pytest.approx(1.0 + 83.1)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 300


def test_without_any_decode_instance_prefill_instances_go_on() -> None:
    """As live: no request is lost, they only take longer."""
    result = run(fault(FaultKind.NODE, "n12", 30.0), load=burst(40, output=400))
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    assert result.totals.tokens_out == 40 * 400


def test_slow_links_and_dies_cost_time_until_they_recover() -> None:
    calm = run()
    straggler = run(fault(FaultKind.STRAGGLER, DECODE_DIE, 100.0, 3.0, at_s=0.0))
    assert mean_tpot(straggler) == pytest.approx(3.0 * mean_tpot(calm), rel=0.1)
    subplane = run(fault(FaultKind.UB_SUBPLANE, "sn0.subplane3", 100.0, at_s=0.0))
    assert 1.02 < mean_tpot(subplane) / mean_tpot(calm) < 1.10
    assert mean_ttft(subplane) > mean_ttft(calm)
    load = workload([(30.0 + 0.05 * n, 4096, 100) for n in range(20)])
    healed = run(fault(FaultKind.STRAGGLER, DECODE_DIE, 5.0, 10.0, at_s=0.0), load=load)
    assert mean_tpot(healed) == pytest.approx(mean_tpot(run(load=load)))
    spiky = run(simulation={"spike_share": 0.1, "spike_factor": 10.0})
    assert mean_tpot(spiky) == pytest.approx(1.9 * mean_tpot(calm), rel=0.25)
    assert list(spiky.requests.outcome) == [Outcome.FINISHED] * LOAD


def test_a_gateway_takes_its_requests_with_it() -> None:
    load = burst(60, output=200)
    result = run(fault(FaultKind.GATEWAY, "gateway0", 1.0), load=load, gateway={"replicas": 2})
    outcomes = list(result.requests.outcome)
    assert 5 < outcomes.count(Outcome.FAILED) < 40
    assert outcomes.count(Outcome.FAILED) + outcomes.count(Outcome.FINISHED) == 60
    assert result.faults[0].sequences_hit > 0
    assert {outcome for row, outcome in enumerate(outcomes) if row % 2} == {Outcome.FINISHED}

"""Aggregated instances in virtual time: whole outputs, both extremes of their load, faults, and the same steps as
live.
"""

import math
from typing import Any

import numpy as np
import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.virtual.report.latencies import Slo
from serving.virtual.report.summary import summarize
from serving.virtual.result import ACCURACY, Outcome, SimResult
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream
from tests.virtual.core.case import burst, config, mean_tpot, workload

POOL = {"replicas": 3, "npus_per_instance": 16, "max_step_tokens": 8192, "max_sequences": 512, "max_waiting": 1000}


def run(load: RequestStream, *faults: Fault, pool: dict[str, Any] | None = None, **sections: Any) -> SimResult:
    changed = config(serving={"mode": "aggregated"}, aggregated=POOL | (pool or {}), **sections)
    return simulate(changed, load, faults=faults, check=True)


@pytest.mark.parametrize("gateways", [1, 2])
def test_all_tokens_are_computed_once_and_come(gateways: int) -> None:
    result = run(burst(120, output=90), gateway={"replicas": gateways})
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 120
    assert list(result.requests.output_tokens) == [90] * 120
    totals = result.totals
    assert totals.tokens_computed == totals.prompt_tokens_in == 120 * 4096
    assert totals.tokens_generated == totals.tokens_out == 120 * 90
    assert (totals.kv_bytes_handed_off, result.decision_counts["route prefill"]) == (0, 120)
    (pool,) = summarize(result, Slo(6.0, 0.05)).pools
    assert (pool.name, pool.instances, pool.peak_npus, pool.output_tokens) == ("aggregated", 3, 48, 120 * 90)
    assert 0 < pool.busy_share <= pool.running_share <= 1
    assert "nobody has published one" in result.config[ACCURACY]


def test_alone_prompts_and_decodes_take_as_long_as_in_instances_of_their_own() -> None:
    load = workload([(2.0 * n, 1000 + 700 * n, 1) for n in range(8)])
    together = run(load, pool={"replicas": 1})
    apart = simulate(config(prefill={"replicas": 1, "max_step_tokens": 8192}, decode={"replicas": 1}), load)
    taken = [np.asarray(one.requests.first_token_s) - np.asarray(one.requests.arrival_s) for one in (together, apart)]
    assert taken[0] == pytest.approx(taken[1])
    # Long answers to short prompts that all come at once.
    load = workload([(0.0, 64, 500)] * 320)
    together = run(load, pool={"replicas": 1, "max_step_tokens": 65_536})
    decode = {"replicas": 1, "npus_per_instance": 16, "max_sequences": 512, "max_step_tokens": 65_536}
    apart = simulate(config(prefill={"replicas": 1, "max_step_tokens": 65_536}, decode=decode), load)
    assert mean_tpot(together) == pytest.approx(mean_tpot(apart), rel=0.01)


def test_chunks_hold_up_those_that_decode_and_shorter_ones_less() -> None:
    load = workload([(0.0, 64, 400)] * 8 + [(2.0, 60_000, 2)] * 3)
    rows = {tokens: run(load, pool={"replicas": 1, "max_step_tokens": tokens}).requests for tokens in (2048, 32_768)}
    prompt_s = {tokens: one.first_token_s[8] for tokens, one in rows.items()}
    assert prompt_s[32_768] < prompt_s[2048], "long chunks read weights less often"
    alone = run(workload([(0.0, 64, 400)] * 8), pool={"replicas": 1}).requests
    assert all(one.finish_s[0] > alone.finish_s[0] + 0.5 for one in rows.values())


def test_a_closed_loop_and_reuse_work() -> None:
    chains = [[n % 3, 10 + n % 3, 20 + n % 3] for n in range(60)]
    load = workload([(0.0, 1600, 20)] * 60, chains).closed(5)
    result = run(load)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 60
    assert sum(result.requests.cached_tokens) > 50 * 1024
    totals = result.totals
    assert totals.tokens_computed + totals.tokens_cached == totals.prompt_tokens_in


@pytest.fixture(scope="module")
def calm_ends_s() -> float:
    """The sum of all end times of a run without faults."""
    return float(np.sum(run(burst(60, output=200)).requests.finish_s))


FAULTS = [
    (FaultKind.DIE, "n0.npu0.die0", 5.0, 0.0),
    (FaultKind.NPU, "n0.npu0", 5.0, 0.0),
    (FaultKind.NODE, "n0", 30.0, 0.0),
    (FaultKind.HBM, "n0.npu0.die0", 0.0, 1.0),
    (FaultKind.STRAGGLER, "n0.npu0.die0", 5.0, 3.0),
    (FaultKind.NETWORK_GLITCH, "sn0", 0.0, 4.0),
    (FaultKind.LAUNCH_JITTER, "n0", 0.5, 0.0),
    (FaultKind.UB_SUBPLANE, "sn0.subplane3", 5.0, 0.0),
]


@pytest.mark.parametrize(("kind", "target", "duration_s", "factor"), FAULTS, ids=[one[0].value for one in FAULTS])
def test_a_fault_costs_time_and_no_request(
    calm_ends_s: float, kind: FaultKind, target: str, duration_s: float, factor: float
) -> None:
    load = burst(60, output=200)
    fault = Fault(Seconds(2.0), kind, target, Seconds(duration_s), factor)
    result = run(load, fault)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 60
    assert sum(result.requests.output_tokens) == 200 * 60
    (record,) = result.faults
    loses = kind in (FaultKind.DIE, FaultKind.NPU, FaultKind.NODE, FaultKind.HBM)
    assert (record.sequences_hit > 0) == loses
    assert np.sum(result.requests.finish_s) > calm_ends_s


def test_what_a_lost_die_held_and_what_does_not_fit_is_computed_again() -> None:
    load = workload([(0.0, 64, 900)] * 320)
    fault = Fault(Seconds(5.0), FaultKind.HBM, "n0.npu0.die0", Seconds(0.0), 1.0)
    (record,) = run(load, fault, pool={"replicas": 1, "max_step_tokens": 65_536}).faults
    assert record.sequences_hit == 10, "320 on 32 dies"
    # Nine million tokens of KV where about eight fit.
    load = workload([(0.0, 100_000, 400)] * 90)
    result = run(load, pool={"replicas": 1, "max_step_tokens": 65_536}, kvcache={"replicas": 0})
    assert list(result.requests.output_tokens) == [400] * 90
    assert result.instances[0].peak_kv_share > 0.9


def test_the_pool_grows_under_a_burst_and_shrinks_after_it() -> None:
    calm, burst_of = [(2.0 * n, 2000, 40) for n in range(300)], [(100.0 + 0.02 * n, 8000, 100) for n in range(3000)]
    scaler = {"policy": "slo", "min_decode": 1, "max_decode": 8, "hold_s": 60.0}
    result = run(
        workload(sorted(calm + burst_of)), pool={"replicas": 1}, autoscaler=scaler,
        simulation={"model_load": "prewarmed"}, slo={"ttft_s": 3.0, "tpot_s": 0.08},
    )  # fmt: skip
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    targets = [(one.at_s, one.target) for one in result.scaling if one.pool == "aggregated"]
    assert min(targets)[0] > 100.0, "calm traffic needs one instance"
    assert max(target for _, target in targets) == 8
    assert targets[-1][1] <= 5
    left = [one for one in result.instances if math.isfinite(one.stopped_s)]
    assert len(left) >= 3

"""Pools that change their size in virtual time: no request is lost, and the NPUs in use never exceed the hardware."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hardware.cost import CostModel, load_device
from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.cluster import NodeConfig
from serving.config.serve import ServeConfig
from serving.virtual.report.result_json import result_json
from serving.virtual.report.summary import summarize
from serving.virtual.result import Outcome, SimResult, SimulatedPoint
from serving.virtual.serve_replicas import start_phases
from serving.virtual.simulation import simulate
from tests.hardware.cost.known import KNOWN
from tests.virtual.core.case import burst, config, workload
from tests.virtual.core.scripted_scaler import ScriptedScaler

SMALLER = (NodeConfig("a", 336, 1 << 20),)
"""42 hosts: one decode instance of 160 NPUs and 11 of prefill take all."""
PREWARMED = {"model_load": "prewarmed"}


def at(result: SimResult, time_s: float) -> SimulatedPoint:
    """The last point not after a time."""
    return [point for point in result.timeline if point.at_s <= time_s][-1]


def finished(result: SimResult) -> bool:
    return set(result.requests.outcome) == {Outcome.FINISHED}


def test_an_instance_starts_after_its_weights_have_come() -> None:
    cost = CostModel(load_device("ascend-910c"))
    shipped = config().simulation

    def seconds(*, warm: bool = False, **values: Any) -> float:
        return start_phases(cost, replace(shipped, **values)).seconds(warm=warm)

    assert seconds(model_load="prewarmed") == 0.0
    assert seconds(model_load="pool") == pytest.approx(35.0, abs=1.0)
    assert seconds(model_load="pool", graphs_s=8.0, warm=True) == pytest.approx(13.0, abs=1.0)
    assert seconds(model_load="storage") == pytest.approx(350.0, abs=10.0)
    assert seconds(model_load="storage", start_s=12.5, warm=True) == 12.5


def test_pools_grow_after_the_start_up_unless_it_is_called_off() -> None:
    scaler = ScriptedScaler([(10.0, "prefill", 3), (60.0, "prefill", 1)])
    result = simulate(
        config(prefill={"replicas": 2}), burst(700, every_s=0.15), timeline_step_s=1.0, check=True, scaler=scaler
    )
    assert finished(result)
    assert [(one.pool, one.before, one.target, one.kind) for one in result.scaling] == [
        ("prefill", 2, 3, "forecast"),
        ("prefill", 3, 1, "forecast"),
    ]
    assert result.decision_counts["scale"] == 2
    assert at(result, 30.0).prefill_npus == 32
    assert at(result, 30.0).starting_npus == 16
    assert at(result, 58.0).prefill_npus == 48
    assert at(result, 58.0).starting_npus == 0
    assert at(result, 75.0).prefill_npus == 16
    assert sum(math.isfinite(one.stopped_s) for one in result.instances) == 2
    assert {"prefill"} == {one.pool for one in result.instances if math.isfinite(one.stopped_s)}
    scaler = ScriptedScaler([(5.0, "prefill", 5), (20.0, "prefill", 2)])
    result = simulate(
        config(prefill={"replicas": 2}), burst(600, every_s=0.1), timeline_step_s=1.0, check=True, scaler=scaler
    )
    assert at(result, 18.0).starting_npus == 48
    assert at(result, 22.0).starting_npus == 0
    assert max(point.prefill_npus for point in result.timeline) == 32
    assert all(math.isnan(one.stopped_s) for one in result.instances)


def test_decode_waits_for_the_npus_that_prefill_yields() -> None:
    load = burst(2400, prompt=16_000, output=32, every_s=0.01)
    scaler = ScriptedScaler([(10.0, "decode", 2), (20.0, "decode", 2), (20.0, "prefill", 4)])
    result = simulate(
        config(prefill={"replicas": 14}, simulation=PREWARMED), load, timeline_step_s=1.0, check=True, scaler=scaler
    )
    assert [(one.at_s, one.pool, one.target) for one in result.scaling] == [(20.0, "prefill", 4), (20.0, "decode", 2)]
    assert max(one.pool("decode").starting for one in scaler.seen if one.now > 20.0) == 1
    assert at(result, 19.0).decode_npus == 160
    assert at(result, 50.0).prefill_npus == 64
    assert at(result, 50.0).decode_npus == 320
    assert all(p.prefill_npus + p.decode_npus + p.starting_npus <= 384 for p in result.timeline)
    assert finished(result)


def test_a_target_is_cut_to_what_fits_and_the_newest_leave_as_on_the_live_board() -> None:
    scaler = ScriptedScaler([(5.0, "prefill", 20), (50.0, "prefill", 4)])
    sections: dict[str, Any] = {"prefill": {"replicas": 4}, "decode": {"replicas": 1}, "simulation": PREWARMED}
    result = simulate(config(**sections), burst(600, every_s=0.1), check=True, scaler=scaler)
    grown, shrunk = result.scaling
    cut = "20 wanted, 14 fit: an instance needs 16 NPUs whole on one node, 0 are free then"
    assert (grown.target, grown.reason) == (14, f"as written; {cut}")
    assert (shrunk.before, shrunk.target) == (14, 4)
    gone = {one.name: one.started_s for one in result.instances if math.isfinite(one.stopped_s)}
    assert gone == {f"prefill-{number}": 5.0 for number in range(4, 14)}
    assert finished(result)


def test_where_nodes_may_come_a_target_waits_for_one_and_is_taken_back() -> None:
    scaler = ScriptedScaler([(5.0, "prefill", 16)])
    waits = {"nodes": "ray", "node_wait_s": 20.0, "max_prefill": 16}
    sections: dict[str, Any] = {"prefill": {"replicas": 4}, "decode": {"replicas": 1}, "simulation": PREWARMED}
    result = simulate(config(autoscaler=waits, **sections), burst(400, every_s=0.1), check=True, scaler=scaler)
    asked, taken_back = result.scaling
    assert (asked.target, asked.reason.endswith("0 are free then: waits for a node")) == (16, True)
    assert (taken_back.at_s, taken_back.target, taken_back.kind) == (25.0, 14, "fit")
    assert taken_back.reason.startswith("no node came for 20 s, 14 fit: ")
    back = Fault(Seconds(2.0), FaultKind.NODE, "n41", Seconds(10.5), 0.0)
    roomy = config(autoscaler=waits, cluster={"nodes": SMALLER}, **sections)
    repaired = simulate(roomy, burst(400, every_s=0.1), faults=(back,), scaler=ScriptedScaler([(5.0, "prefill", 11)]))
    assert [one.reason.partition(":")[0] for one in repaired.scaling][1:] == ["room came after 8 s"]


def test_instances_are_spread_over_hosts(tmp_path: Path) -> None:
    """Both prefill instances begin on n0, decode takes n1, and n2 is empty."""
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["qwen3-30b-a3b"]), encoding="utf-8")
    three = config(
        model={"path": tmp_path, "name": "small"}, cluster={"nodes": (NodeConfig("a", 24, 65_536),)},
        prefill={"replicas": 2, "npus_per_instance": 4}, decode={"replicas": 1, "npus_per_instance": 8},
        simulation={"drafts": 0} | PREWARMED, kvcache={"replicas": 0}, autoscaler={"spread_after_s": 10.0},
    )  # fmt: skip
    result = simulate(three, burst(200, every_s=0.2), check=True, scaler=ScriptedScaler())
    assert [(one.at_s, one.pool, one.target, one.kind) for one in result.scaling] == [
        (11.0, "prefill", 3, "spread"),
        (12.0, "prefill", 2, "spread"),
    ]
    assert [one.name for one in result.instances if math.isfinite(one.stopped_s)] == ["prefill-1"]
    assert finished(result)


def leaving_decode(**sections: dict[str, float]) -> SimResult:
    """Long outputs on two small decode instances, one of which leaves at 12 s."""
    load = workload([(0.05 * n, 1000, 2000) for n in range(200)] + [(10.0 + n, 1000, 2) for n in range(80)])
    two = config(prefill={"replicas": 2}, decode={"replicas": 2, "npus_per_instance": 32}, **sections)
    scaler = ScriptedScaler([(12.0, "decode", 1)])
    result = simulate(two, load, timeline_step_s=1.0, check=True, scaler=scaler)
    assert finished(result)
    assert set(result.requests.attempts) == {1}
    assert at(result, 13.0).draining_npus == 32
    assert sum(math.isfinite(one.stopped_s) for one in result.instances) == 1
    return result


def test_a_leaving_decode_instance_hands_its_streams_on_unless_it_is_the_last() -> None:
    moved, stays = leaving_decode(engine={"drain_s": 2.0}), leaving_decode(engine={"drain_s": 1000.0})
    assert at(moved, 17.0).draining_npus == 0
    assert at(stays, 40.0).draining_npus == 32
    assert moved.totals.kv_bytes_handed_off > 1.3 * stays.totals.kv_bytes_handed_off
    assert moved.totals.tokens_computed == stays.totals.tokens_computed
    assert moved.totals.tokens_generated == stays.totals.tokens_generated
    assert moved.totals.npu_seconds < stays.totals.npu_seconds
    # Otherwise a scaler would see them leave, return on their new instances, and consider that a burst.
    load = workload([(0.05 * n, 1000, 2000) for n in range(200)])
    two = config(prefill={"replicas": 2}, decode={"replicas": 2, "npus_per_instance": 32}, engine={"drain_s": 5.0})
    scaler = ScriptedScaler([(12.0, "decode", 1)])
    simulate(two, load, scaler=scaler)
    seen = [one.pool("decode").sequences for one in scaler.seen if 11.0 <= one.now <= 20.0]
    assert len(seen) >= 5
    assert set(seen) == {200}
    load = workload([(0.05 * n, 1000, 500) for n in range(100)])
    scaler = ScriptedScaler([(6.0, "decode", 0)])
    result = simulate(config(prefill={"replicas": 2}), load, timeline_step_s=1.0, check=True, scaler=scaler)
    assert finished(result)
    assert at(result, 7.0).draining_npus == 160


def test_a_leaving_prefill_instance_hands_its_queue_on() -> None:
    """As live: after `drain_s` its queue moves to other instances, and the blocks that it skipped are stored."""
    load = workload([(0.0, 16_000, 2)] * 400)
    draining = {}
    for drain_s in (1.0, 1000.0):
        two = config(prefill={"replicas": 2}, engine={"drain_s": drain_s})
        scaler = ScriptedScaler([(3.0, "prefill", 1)])
        result = simulate(two, load, timeline_step_s=1.0, check=True, scaler=scaler)
        assert finished(result)
        draining[drain_s] = [at(result, second).draining_npus for second in (4.0, 6.0, 30.0)]
    assert draining == {1.0: [16, 0, 0], 1000.0: [16, 16, 16]}


def test_memory_servers_come_and_go_and_lost_ones_are_replaced() -> None:
    prefixes = [[n % 40 * 10 + block for block in range(8)] for n in range(600)]
    load = workload([(0.2 * n, 4096, 16) for n in range(600)], prefixes)
    scaler = ScriptedScaler([(20.0, "kvcache", 6), (80.0, "kvcache", 2)])
    result = simulate(config(kvcache={"replicas": 4, "ub_memory_mib": 8192}), load, check=True, scaler=scaler)
    assert [at(result, t).memory_servers for t in (10.0, 40.0, 119.0)] == [4, 6, 2]
    assert finished(result)
    assert result.totals.tokens_pulled > 0
    caches = [one.cache for one in scaler.seen]
    assert all(one is not None for one in caches)
    assert max(one.bytes_used for one in caches if one) > 0
    assert all(b.hit_tokens >= a.hit_tokens for a, b in pairwise([one for one in caches if one]))
    fault = Fault(Seconds(10.0), FaultKind.MEMORY_SERVER, "memory2", Seconds(40.0), 0.0)
    scaler = ScriptedScaler([(20.0, "kvcache", 5)])
    load = workload([(0.5 * n, 4096, 16) for n in range(200)])
    result = simulate(config(), load, timeline_step_s=1.0, faults=(fault,), check=True, scaler=scaler)
    assert [at(result, t).memory_servers for t in (5.0, 15.0, 30.0, 60.0)] == [4, 3, 4, 5]


def test_a_pool_has_no_more_servers_than_there_is_room_for_and_without_any_no_signals() -> None:
    scaler = ScriptedScaler([(5.0, "kvcache", 8)])
    roomy = config(kvcache={"replicas": 2, "ub_memory_mib": 16 << 20})
    result = simulate(roomy, burst(300), timeline_step_s=1.0, check=True, scaler=scaler)
    assert at(result, 14.0).memory_servers == 4
    assert [(one.target, "8 wanted, 4 fit" in one.reason) for one in result.scaling] == [(4, True)]
    bare = ScriptedScaler()
    limits = {"kvcache": {"replicas": 0}, "prefill": {"replicas": 2}, "autoscaler": {"npu_budget": 200}}
    simulate(config(**limits), burst(20), scaler=bare)
    assert {(one.cache, one.npus_total, one.npus_free) for one in bare.seen} == {(None, 200, 8)}


def test_signals_are_totals_that_end_where_the_result_does() -> None:
    load = burst(400, every_s=0.12)
    scaler = ScriptedScaler([(5.0, "prefill", 3)])
    result = simulate(config(prefill={"replicas": 1}), load, scaler=scaler)
    known = {one.now: one.start_s for one in scaler.seen}
    assert [known[at_s] for at_s in (4.0, 9.0, 38.0)] == [30.0, 30.0, 32.0], "as live, where a start is not foreseen"
    for before, after in pairwise(scaler.seen):
        assert after.now > before.now
        for name in ("arrived", "arrived_tokens", "uncached_tokens", "finished", "generated_tokens", "ttft_met"):
            assert getattr(after.traffic, name) >= getattr(before.traffic, name)
    last = scaler.seen[-1]
    assert last.traffic.arrived == 400
    assert last.traffic.arrived_tokens == 400 * 4096
    assert 0 < last.traffic.ttft_met + last.traffic.ttft_missed <= 400
    assert last.traffic.uncached_tokens <= result.totals.tokens_computed
    assert last.start_s == pytest.approx(35.0, abs=1.0)
    assert last.npus_total == 384
    prefill, decode = last.pools
    assert (prefill.target, prefill.npus_per_instance, prefill.running + prefill.starting) == (3, 16, 3)
    assert prefill.tokens_per_s == pytest.approx(0.55 * 16 * 5663, rel=0.1), "one prompt a step, a quarter of full"
    assert 160 * 48 < decode.max_sequences <= 160 * 96


def test_who_waits_longest_and_what_decode_can_take_are_known() -> None:
    scaler = ScriptedScaler()
    simulate(config(prefill={"replicas": 1}), workload([(n * 0.01, 30_000, 4) for n in range(300)]), scaler=scaler)
    waits = [one.traffic.oldest_wait_s for one in scaler.seen]
    assert max(waits) > 20.0
    assert all(after <= before + 1.0 + 1e-6 for before, after in pairwise(waits))
    worst = max(scaler.seen, key=lambda one: one.pool("prefill").queued_tokens)
    assert worst.pool("prefill").queued_tokens > 1_000_000
    assert worst.traffic.oldest_wait_s > 2.0
    assert scaler.seen[-1].traffic.ttft_missed > 0
    scaler = ScriptedScaler([])
    tight = config(slo={"tpot_s": 0.012})
    simulate(tight, burst(400, output=64, every_s=0.2), scaler=scaler)
    told = [one.pool("decode") for one in scaler.seen]
    assert told[0].max_sequences == told[0].seats, "too little was measured yet"
    assert told[-1].max_sequences < told[0].seats
    assert all(1 <= one.max_sequences <= one.crowd <= one.seats for one in told)


def test_a_lost_instance_is_replaced_once() -> None:
    fault = Fault(Seconds(10.0), FaultKind.NODE, "n0", Seconds(1000.0), 0.0)
    scaler = ScriptedScaler([(12.0, "prefill", 4), (40.0, "prefill", 5)])
    result = simulate(
        config(prefill={"replicas": 4}),
        burst(1000, every_s=0.3),
        timeline_step_s=1.0,
        faults=(fault,),
        check=True,
        scaler=scaler,
    )
    assert at(result, 30.0).prefill_npus == 48
    assert at(result, 280.0).prefill_npus == 80
    assert len([one for one in result.instances if one.pool == "prefill"]) == 6
    shrunk = ScriptedScaler([(12.0, "prefill", 3)])
    result = simulate(
        config(prefill={"replicas": 4}), burst(1000, every_s=0.3), faults=(fault,), check=True, scaler=shrunk
    )
    assert len([one for one in result.instances if one.pool == "prefill"]) == 4


def scripted_run(seed: int) -> bytes:
    scaler = ScriptedScaler([(3.0, "prefill", 6), (9.0, "decode", 2), (20.0, "prefill", 2), (21.0, "kvcache", 6)])
    varied: ServeConfig = config(prefill={"replicas": 3}, simulation={"jitter": 0.1, "seed": seed})
    result = simulate(varied, burst(600), check=True, scaler=scaler)
    return result_json(replace(result, wall_s=0.0), summarize(result), requests=True)


@pytest.mark.nightly("tests/virtual/core/test_simulation.py::test_one_seed_gives_one_history")
def test_the_same_seed_gives_the_same_history() -> None:
    assert scripted_run(1) == scripted_run(1)
    assert scripted_run(1) != scripted_run(2)

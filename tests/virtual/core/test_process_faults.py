"""Kills, freezes and slow links in virtual time: finished, resent and lost requests, and recovered instances."""

import math
from pathlib import Path
from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.load import load_config
from serving.faults.scenario import load_scenario
from serving.faults.schedule import plan_faults, units_of
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from tests.virtual.core.case import burst, config, workload

CHAOS = Path(__file__).parents[3] / "deploy" / "chaos"
TWO = {"decode": {"replicas": 2, "npus_per_instance": 16}, "prefill": {"replicas": 2}}
SILENCE_S, REPLACED_S, RESTART_S = 2.5, 15.0, 83.1


def fault(kind: FaultKind, target: str, lasts_s: float = 0.0, factor: float = 0.0, at_s: float = 2.0) -> Fault:
    return Fault(Seconds(at_s), kind, target, Seconds(lasts_s), factor)


def run(*faults: Fault, count: int = 40, output: int = 400, **sections: dict[str, Any]) -> SimResult:
    return simulate(config(**{**TWO, **sections}), burst(count, output=output), faults=faults, check=True)


def outcomes(result: SimResult) -> tuple[int, int, int]:
    """Numbers of requests that finished, failed, and were resent."""
    rows = list(result.requests.outcome)
    again = sum(attempts > 1 for attempts in result.requests.attempts)
    return rows.count(Outcome.FINISHED), rows.count(Outcome.FAILED), again


def names(result: SimResult) -> set[str]:
    return {one.name for one in result.instances}


def end_s(result: SimResult) -> float:
    return max(result.requests.finish_s)


def test_a_killed_instance_costs_no_request_and_comes_back_after_the_restart_of_an_engine() -> None:
    killed = run(fault(FaultKind.KILL, "decode0"))
    (record,) = killed.faults
    finished, failed, again = outcomes(killed)
    assert (finished, failed) == (40, 0)
    assert 0 < again == record.sequences_hit < 40
    assert record.target == "decode-0"
    assert record.tokens_lost > 4096 * again * 0.9
    assert "decode-2" not in names(killed), "the run is over before"
    late = simulate(
        config(**TWO), workload([(0.0, 4096, 8), (2.0 + RESTART_S + 1.0, 4096, 8)]),
        faults=(fault(FaultKind.KILL, "decode0"),), check=True,
    )  # fmt: skip
    assert {one.name: one.started_s for one in late.instances}["decode-2"] == pytest.approx(2.0 + RESTART_S)


def test_a_killed_pool_is_waited_for() -> None:
    both = [fault(FaultKind.KILL, "decode0", at_s=at) for at in (2.0, 2.1)]
    result = run(*both)
    assert outcomes(result)[:2] == (40, 0)
    assert [one.target for one in result.faults] == ["decode-0", "decode-1"]


@pytest.mark.parametrize(
    ("lasts_s", "noticed", "replaced"),
    [(SILENCE_S - 0.5, False, False), (SILENCE_S + 1.0, True, False), (REPLACED_S + 1.0, True, True),
     (math.inf, True, True)],
)  # fmt: skip
def test_a_frozen_instance_is_waited_for_or_given_up_or_replaced(lasts_s: float, noticed: bool, replaced: bool) -> None:
    arrivals = [(0.05 * n, 4096, 400) for n in range(40)] + [(2.0 + REPLACED_S + RESTART_S + 5.0, 4096, 8)]
    load = workload(arrivals)
    result = simulate(config(**TWO), load, faults=(fault(FaultKind.FREEZE, "decode0", lasts_s),), check=True)
    finished, failed, again = outcomes(result)
    assert (finished, failed) == (41, 0)
    assert (again > 0) == noticed
    (record,) = result.faults
    assert (record.sequences_hit > 0) == noticed
    assert ("decode-2" in names(result)) == replaced
    assert record.npu_seconds_lost == pytest.approx(16 * min(lasts_s, REPLACED_S))


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_a_thawed_instance_serves_again(pool: str) -> None:
    only = {"prefill": {"replicas": 1}, "decode": {"replicas": 1, "npus_per_instance": 16}}
    load = workload([(0.0, 4096, 400), (1.0, 4096, 100), (20.0, 4096, 8)])
    frozen = fault(FaultKind.FREEZE, f"{pool}0", 6.0, at_s=1.0)
    result = simulate(config(**only), load, faults=(frozen,), check=True)
    assert outcomes(result)[:2] == (3, 0)
    assert names(result) == {"prefill-0", "decode-0"}


def test_an_aggregated_instance_is_killed_and_frozen() -> None:
    pool: dict[str, Any] = {"serving": {"mode": "aggregated"}, "aggregated": {"replicas": 2, "npus_per_instance": 16}}
    for one in (fault(FaultKind.KILL, "aggregated1"), fault(FaultKind.FREEZE, "aggregated1", 5.0)):
        result = simulate(config(**pool), burst(20, output=200), faults=(one,), check=True)
        finished, failed, again = outcomes(result)
        assert (finished, failed) == (20, 0)
        assert again > 0


def test_a_slow_link_delays_every_move_while_it_lasts() -> None:
    one = {"prefill": {"replicas": 1}, "decode": {"replicas": 1, "npus_per_instance": 16}}
    load = workload([(0.0, 4096, 8), (30.0, 4096, 8)])
    calm = simulate(config(**one), load, check=True)
    slow = simulate(
        config(**one), load, faults=(fault(FaultKind.SLOW_LINK, "decode0", 10.0, 0.5, at_s=0.0),), check=True
    )
    late = [after - before for after, before in zip(slow.requests.finish_s, calm.requests.finish_s, strict=True)]
    assert late == pytest.approx([0.5, 0.0], abs=0.02)


def test_parts_and_memory_servers_are_killed_by_number() -> None:
    gateway = run(fault(FaultKind.KILL_PART, "gateway1"), gateway={"replicas": 2})
    finished, failed, _ = outcomes(gateway)
    assert finished + failed == 40
    assert failed >= gateway.faults[0].sequences_hit > 0
    memory = run(fault(FaultKind.KILL, "memory1"))
    assert outcomes(memory) == (40, 0, 0)
    assert memory.faults[0].target == "server-1"
    for lasts_s in (1.0, 8.0, math.inf):
        frozen = run(fault(FaultKind.FREEZE, "memory1", lasts_s))
        assert outcomes(frozen) == (40, 0, 0)
        assert frozen.faults[0].target == "server-1"
    node = run(fault(FaultKind.KILL_PART, "node0"))
    assert node.faults[0].target == "n0"
    assert outcomes(node)[:2] == (40, 0)


def test_the_last_of_a_pool_is_spared_and_nothing_is_hit_twice() -> None:
    drawn = Fault(Seconds(2.0), FaultKind.KILL, "", Seconds(0.0), 0.0, ("decode",), 0.5, spare_last=True)
    result = run(drawn, decode={"replicas": 1, "npus_per_instance": 16})
    assert [(one.target, one.sequences_hit) for one in result.faults] == [("nothing to hit", 0)]
    frozen = fault(FaultKind.FREEZE, "decode0", 30.0)
    result = run(frozen, fault(FaultKind.KILL, "decode1", at_s=2.5))
    assert [one.target for one in result.faults] == ["decode-0", "nothing to hit"], "the other is number 0 now"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_scenario_plays_the_schedule_that_chaos_plays(seed: int) -> None:
    path = CHAOS / "both.toml"
    scenario = load_scenario(path)
    small = load_config(path.parent / scenario.scenario.config)
    settings = config(prefill={"replicas": 2}, decode={"replicas": 2, "npus_per_instance": 16}, kvcache={"replicas": 2})
    duration_s = scenario.scenario.duration_s
    plan = plan_faults(scenario, seed, duration_s, units_of(small))
    assert plan == plan_faults(scenario, seed, duration_s, units_of(settings)), "sizes alone decide"
    load = burst(240, output=300, every_s=0.5)
    result = simulate(settings, load, faults=plan, check=True)
    again = simulate(settings, load, faults=plan, check=True)
    assert [(one.at_s, one.kind) for one in result.faults] == [(one.at_s, one.kind) for one in plan]
    assert result.faults == again.faults
    assert outcomes(result)[:2] == (240, 0), "live, such a scenario loses no request either"

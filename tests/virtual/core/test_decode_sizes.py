"""Decode instances that grow and shrink while they serve: no request is lost, and the cost is counted."""

from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.checks import check_consistency
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.virtual.result import Outcome, SimResult, SimulatedPoint
from serving.virtual.scaling_signals import most_decoded
from serving.virtual.serve_replicas import PROCESS_S, WarmProcesses
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.times import TableTimes
from tests.cases.nightly import mostly_nightly
from tests.virtual.core.case import config, workload
from tests.virtual.core.key_cases import changed
from tests.virtual.core.scripted_scaler import ScriptedScaler

LOAD = [(0.05 * n, 1000, 2000) for n in range(200)] + [(10.0 + 0.5 * n, 1000, 20) for n in range(240)]
"""Long answers, and short ones for two minutes."""


def parts(replicas: int = 1, npus: int = 48, **simulation: Any) -> ServeConfig:
    """Decode instances of 32 to 80 NPUs."""
    return config(
        prefill={"replicas": 2},
        decode={"replicas": replicas, "npus_per_instance": npus},
        autoscaler={"policy": "slo", "decode_step_npus": 8, "min_decode_npus": 32, "max_decode_npus": 80},
        simulation={"graphs_s": 2.0, "warm_npus": 64, **simulation},
        slo={"tpot_s": 0.025},
    )


def played(
    script: list[tuple[float, str, int]], settings: ServeConfig | None = None, faults: tuple[Fault, ...] = ()
) -> tuple[SimResult, ScriptedScaler]:
    scaler = ScriptedScaler(script)
    settings = parts() if settings is None else settings
    result = simulate(settings, workload(LOAD), timeline_step_s=1.0, check=True, scaler=scaler, faults=faults)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    return result, scaler


def at(result: SimResult, time_s: float) -> SimulatedPoint:
    return [point for point in result.timeline if point.at_s <= time_s][-1]


def test_an_instance_grows_while_it_serves() -> None:
    result, scaler = played([(20.0, "decode", 8)])
    still, _ = played([])
    assert (at(result, 22.0).decode_npus, at(result, 22.0).starting_npus) == (48, 16)
    assert (at(result, 30.0).decode_npus, at(result, 30.0).starting_npus) == (64, 0)  # 5 s of weights, 2 of graphs
    assert at(result, 22.0).decode_batch > 150
    assert len([one for one in result.instances if one.pool == "decode"]) == 1
    assert result.totals.tokens_generated == still.totals.tokens_generated
    assert result.totals.npu_seconds > still.totals.npu_seconds
    signals = next(one.pool("decode") for one in scaler.seen if one.now >= 30.0)
    assert (signals.target, signals.running, signals.npus_per_instance) == (8, 8, 8)


def test_a_cold_process_is_waited_for_and_a_pause_is_felt() -> None:
    result, scaler = played([(20.0, "decode", 8)], parts(warm_npus=8))
    assert at(result, 50.0).decode_npus == 48
    assert at(result, 60.0).decode_npus == 64
    assert scaler.seen[0].pool("decode").start_s == pytest.approx(7.5, abs=0.1)  # 8 NPUs are warm

    def tpot_s(pause_s: float) -> float:
        result, _ = played([(20.0, "decode", 8)], parts(resize_pause_s=pause_s))
        return float(result.requests.finish_s[0] - result.requests.first_token_s[0])

    assert tpot_s(4.0) - tpot_s(0.0) == pytest.approx(4.0, abs=0.3)


def test_an_instance_shrinks_and_its_streams_go_on() -> None:
    result, scaler = played([(20.0, "decode", 4)])
    still, _ = played([])
    assert set(result.requests.attempts) == {1}
    assert result.totals.tokens_computed == still.totals.tokens_computed
    assert result.totals.tokens_generated == still.totals.tokens_generated
    assert result.totals.kv_bytes_handed_off > still.totals.kv_bytes_handed_off
    assert (at(result, 21.0).decode_npus, at(result, 21.0).draining_npus) == (48, 16)
    assert (at(result, 30.0).decode_npus, at(result, 30.0).draining_npus) == (32, 0)
    assert result.totals.npu_seconds < still.totals.npu_seconds
    signals = next(one.pool("decode") for one in scaler.seen if one.now >= 21.0)
    assert (signals.running, signals.draining) == (4, 2)


def test_it_keeps_to_its_bounds_and_instances_share_the_parts() -> None:
    result, scaler = played([(20.0, "decode", 1), (22.0, "decode", 40), (70.0, "decode", 6)])
    sizes = [point.decode_npus for point in result.timeline]
    assert (min(sizes), max(sizes), sizes[-1]) == (32, 80, 48)
    assert (scaler.seen[0].pool("decode").low, scaler.seen[0].pool("decode").high) == (4, 10)
    shared, _ = played([(20.0, "decode", 11)], parts(replicas=2, npus=40))
    assert sorted(one.npus for one in shared.instances if one.pool == "decode") == [40, 48]


def test_abilities_rise_faster_than_parts_which_are_whole_groups() -> None:
    _, scaler = played([])
    abilities = scaler.seen[0].pool("decode").abilities
    assert len(abilities) == 11
    assert list(abilities) == sorted(set(abilities))
    assert abilities[8] > 1.1 * 2 * abilities[4]
    assert abilities[2] == pytest.approx(abilities[4] / 2)
    settings = parts(decode_attention_tp=4)
    result, _ = played([(20.0, "decode", 8), (50.0, "decode", 4)], settings)
    assert [at(result, time_s).decode_npus for time_s in (19.0, 40.0, result.totals.end_s)] == [48, 64, 32]
    most = [most_decoded(settings, TableTimes(cost_model(settings), settings.simulation, 32, 96), npus)
                 for npus in (32, 64)]  # fmt: skip
    assert 0 < most[0] < most[1]


DEAD = [(8, "n4"), (4, "n4"), (8, "n10")]
DEAD_AS = "tests/virtual/core/test_decode_sizes.py::test_a_node_that_dies_while_an_instance_changes_leaves_sound_books"


@pytest.mark.parametrize(("parts_then", "node"), mostly_nightly(DEAD, DEAD[1:2], DEAD_AS))
def test_a_node_that_dies_while_an_instance_changes_leaves_sound_books(parts_then: int, node: str) -> None:
    fault = Fault(Seconds(20.5), FaultKind.NODE, node, Seconds(30.0), 0.0)
    result, scaler = played([(20.0, "decode", parts_then)], faults=(fault,))
    assert at(result, result.totals.end_s).decode_npus == 8 * parts_then
    assert scaler.seen[-1].npus_free == 384 - 32 - 8 * parts_then


def test_a_die_that_came_later_may_be_lost_like_any_other() -> None:
    fault = Fault(Seconds(20.0), FaultKind.DIE, "n11.npu7.die1", Seconds(30.0), 0.0)
    result, _ = played([(0.5, "decode", 8)], faults=(fault,))  # some of the long answers come after it has grown
    assert result.faults[0].sequences_hit > 0


def test_what_moves_takes_time_and_warm_processes_come_back() -> None:
    cost = cost_model(parts())
    assert cost.regroup_s(96, 128) < 1e-4  # remaining ranks drop experts; the new ones load without delaying them
    assert 0.001 < cost.regroup_s(128, 64) < 1.0
    warm = WarmProcesses(16)
    assert warm.take(8, 1.0)
    assert not warm.take(16, 2.0)
    assert warm.npus(1.0 + 0.9 * PROCESS_S) == 8
    assert warm.npus(1.0 + PROCESS_S) == 16


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("decode_step_npus", 7, "must be multiples"),
        ("min_decode_npus", 56, "allow 56 to 80"),
        ("max_decode_npus", 40, "allow 32 to 40"),
    ],
)
def test_sizes_that_cannot_be_are_refused(key: str, value: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_consistency(changed(parts(), {f"autoscaler.{key}": value}), "x.toml")

"""Expert-parallel groups in virtual time: imbalance follows from the map, which the group's core changes as live."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, RoutingTraceError
from serving.group.core.routing_trace import TraceHead, trace_lines
from serving.virtual.result import ExpertRecord, Outcome, SimResult
from serving.virtual.routing import SkewedRouting, read_routing
from serving.virtual.simulation import simulate
from tests.virtual.core.case import config, mean_tpot, workload
from tests.virtual.core.scripted_scaler import ScriptedScaler

NEVER = Seconds(math.inf)
FEW = [(0.1 * n, 200, 400) for n in range(150)]
LONG = [(0.5 * n, 200, 400) for n in range(120)]
MANY = [(0.004 * n, 200, 300) for n in range(1500)]
"""Nearly 50 sequences per die, so that the busiest one's products take longer than reading its weights."""


def skewed(experts: dict[str, Any] | None = None, **sections: dict[str, Any]) -> ServeConfig:
    """A decode instance of 32 ranks, whose experts move quickly."""
    rules = {"redundant": 2, "window_s": 4.0, "slices": 4, "move_mib_per_s": 1e6}
    return config(
        simulation={"routing": "skew"} | sections.pop("simulation", {}), experts=rules | (experts or {}),
        **{"decode": {"npus_per_instance": 16, "max_sequences": 3072}, "prefill": {"replicas": 2}} | sections,
    )  # fmt: skip


def played(
    settings: ServeConfig,
    *faults: Fault,
    load: Sequence[tuple[float, int, int]] = FEW,
    scaler: ScriptedScaler | None = None,
) -> SimResult:
    result = simulate(settings, workload(load), timeline_step_s=1.0, check=True, faults=faults, scaler=scaler)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    return result


def first(result: SimResult, kind: str) -> ExpertRecord:
    return next(one for one in result.experts if one.kind == kind)


def test_the_skew_is_as_published() -> None:
    for row in SkewedRouting(256, 7, "decode-0").weights(3):
        mean = sum(row) / 256
        assert sum(one > mean for one in row) / 256 == pytest.approx(0.2, abs=0.02)
        assert max(row) / mean == pytest.approx(30, rel=0.2)
    one, other = (SkewedRouting(256, seed, "decode-0") for seed in (1, 2))
    assert one.rows(5, 10_000) == SkewedRouting(256, 1, "decode-0").rows(5, 10_000) != other.rows(5, 10_000)


def test_a_rebalance_evens_ranks_out_and_shortens_steps() -> None:
    moved, still = played(skewed(), load=MANY), played(skewed({"policy": "none"}), load=MANY)
    done = first(moved, "rebalanced")
    assert done.before < 0.3
    assert done.after > 0.8
    assert done.moves > 32
    assert [one.kind for one in still.experts] == ["opened"]
    full_s = [next(point.step_s for point in one.timeline if point.at_s > 9.0) for one in (moved, still)]
    assert full_s[0] < 0.95 * full_s[1]


def test_moves_take_their_bytes_time_and_are_not_begun_where_that_is_too_long() -> None:
    def moving_s(mib_per_s: float) -> float:
        done = first(played(skewed({"move_mib_per_s": mib_per_s}), load=FEW[:40]), "rebalanced")
        return float(done.reason.split("; ")[1].removesuffix(" s")) if done.moves else 0.0

    assert played(skewed(), load=FEW[:40]).experts == played(skewed(), load=FEW[:40]).experts
    assert moving_s(50_000) / moving_s(100_000) == pytest.approx(2.0, rel=0.2)
    assert moving_s(100.0) == 0.0  # other weights have no cost


def test_a_lost_rank_leaves_the_map_and_its_replacement_joins() -> None:
    fault = Fault(Seconds(8.0), FaultKind.DIE, "n4.npu0.die1", Seconds(15.0), 0.0)
    result = played(skewed(), fault)
    lost, joined = first(result, "lost"), first(result, "joined")
    assert (lost.ranks, joined.ranks) == (31, 32)
    assert joined.at_s == pytest.approx(23.0)
    pause_s = 12.8 if " 0 experts borrowed" in lost.reason else 54.8
    assert result.faults[0].npu_seconds_lost == pytest.approx(16 * pause_s, rel=0.01)
    assert result.faults[0].sequences_hit > 0


def test_experts_that_lay_nowhere_else_are_loaded_and_that_takes_longer() -> None:
    fault = Fault(Seconds(8.0), FaultKind.DIE, "n4.npu0.die1", NEVER, 0.0)
    single, double = (played(skewed({"policy": "none", "redundant": count}), fault) for count in (0, 8))
    assert "16 experts borrowed" in first(single, "lost").reason
    assert first(single, "lost").reason.endswith("54.8 s")
    assert first(double, "lost").reason.endswith("12.8 s")
    masked = played(skewed({"policy": "none", "redundant": 0, "on_loss": "mask"}), fault)
    assert first(masked, "lost").reason.endswith("lost, 0 experts borrowed, 16 masked; pause 12.9 s")


def test_expert_dies_are_ranks_of_their_own() -> None:
    """Attention dies have no experts: their loss leaves the map as it is, and takes the pause of attention dies."""
    apart = {"simulation": {"expert_dies": 16, "domains": 2}}
    attention, expert = (
        played(skewed(**apart), Fault(Seconds(8.0), FaultKind.DIE, name, Seconds(12.0), 0.0))
        for name in ("n5.npu7.die1", "n4.npu7.die1")
    )
    assert {one.kind for one in attention.experts} == {"opened", "rebalanced"}
    assert attention.faults[0].npu_seconds_lost == pytest.approx(16 * 10.2, rel=0.01)
    assert attention.faults[0].sequences_hit > 0
    lost = first(expert, "lost")
    assert (lost.ranks, first(expert, "joined").ranks, expert.faults[0].sequences_hit) == (15, 16, 0)
    assert lost.reason.startswith("rank 15 lost")
    pause_s = 10.7 if " 0 experts borrowed" in lost.reason else 52.7
    assert expert.faults[0].npu_seconds_lost == pytest.approx(16 * pause_s, rel=0.01)


def test_a_slow_attention_die_slows_all_and_a_slow_expert_die_only_its_experts() -> None:
    apart = {"simulation": {"expert_dies": 16, "domains": 2}}
    times = [
        mean_tpot(played(skewed(**apart), *faults, load=FEW[:15]))
        for faults in ([], *([Fault(Seconds(0.5), FaultKind.STRAGGLER, name, NEVER, 2.0)] for name in
                             ("n4.npu0.die1", "n5.npu7.die1")))
    ]  # fmt: skip
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


def test_a_group_that_loses_all_its_ranks_begins_anew() -> None:
    settings = config(
        simulation={"routing": "skew", "drafts": 0}, decode={"npus_per_instance": 1, "max_sequences": 8},
        model={"path": Path("deploy/models/storyteller").resolve()},
    )  # fmt: skip
    result = simulate(
        settings, workload([(0.5 * n, 100, 200) for n in range(20)]),
        faults=(Fault(Seconds(4.0), FaultKind.NPU, "n12.npu0", NEVER, 0.0),), check=True,
    )  # fmt: skip
    assert first(result, "lost").ranks == 2
    assert "begun anew" in first(result, "lost").reason
    assert result.faults[0].npu_seconds_lost == pytest.approx(83.1, rel=0.01)


def test_moves_of_an_instance_that_is_lost_end_with_it() -> None:
    settings = skewed({"move_mib_per_s": 30_000.0})  # moves start after 1.5 s and take 5
    settings = replace(settings, decode=replace(settings.decode, replicas=2))
    result = played(settings, Fault(Seconds(4.0), FaultKind.NODE, "n4", NEVER, 0.0))
    kinds = {name: [one.kind for one in result.experts if one.group == name] for name in ("decode-0", "decode-1")}
    assert kinds["decode-0"] == ["opened"]
    assert kinds["decode-1"][:2] == ["opened", "rebalanced"]


def test_a_group_grows_and_shrinks() -> None:
    settings = skewed(autoscaler={"policy": "slo", "decode_step_npus": 8, "min_decode_npus": 16, "max_decode_npus": 32})
    script = [(5.0, "decode", 3), (16.0, "decode", 2)]
    settings = replace(settings, simulation=replace(settings.simulation, warm_npus=32))
    result = played(settings, scaler=ScriptedScaler(script))
    sizes = [(one.ranks, one.reason.partition(";")[0]) for one in result.experts if one.kind == "resized"]
    assert sizes == [(48, "32 ranks to 48"), (32, "48 ranks to 32")]
    assert [one.kind for one in result.experts].count("rebalanced") >= 2


def test_attention_dies_come_and_go_without_a_new_map() -> None:
    parts = {"policy": "slo", "decode_step_npus": 8, "min_decode_npus": 16, "max_decode_npus": 32}
    settings = skewed(autoscaler=parts, simulation={"expert_dies": 16, "domains": 2, "warm_npus": 32})
    result = played(settings, scaler=ScriptedScaler([(5.0, "decode", 3), (16.0, "decode", 2)]))
    assert {one.kind for one in result.experts} == {"opened", "rebalanced"}
    assert {one.ranks for one in result.experts} == {16}
    sizes = [point.decode_npus for point in result.timeline]
    assert (max(sizes), sizes[-1]) == (24, 16)


def test_a_slow_rank_gets_fewer_rows_and_the_group_is_faster_for_it() -> None:
    fault = Fault(Seconds(2.0), FaultKind.STRAGGLER, "n4.npu0.die1", NEVER, 2.0)
    rules = {"redundant": 4, "window_s": 20.0}
    treated, left = (played(skewed(rules | {"straggler": mode}), fault, load=LONG) for mode in ("balance", "off"))
    assert mean_tpot(treated) < 0.95 * mean_tpot(left)


def test_what_virtual_time_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    for settings, words in (
        (skewed({"straggler": "drain"}), "straggler"),
        (skewed(simulation={"redundant_experts": 8}), "redundant_experts"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulate(settings, workload(FEW[:1]))
    (head,) = (line.decode() for line in trace_lines(TraceHead("g", 2, 8, 1.0), ()))
    trace = tmp_path / "trace.jsonl"
    for text, given, words in (
        (head, (4, 2, 1.0), "8 experts, but the model has 2 of 4"),
        (head, (8, 1, 1.0), "2 layers"),
        (head, (8, 2, 2.0), "make them equal"),
        (head, (8, 2, 1.0), "has no rows"),
    ):
        trace.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_routing(trace, *given)
    trace.write_text("{}\n{}\n")
    with pytest.raises(RoutingTraceError):
        read_routing(trace, 8, 2, 1.0)
    with pytest.raises(ConfigError, match="cannot read"):
        read_routing(tmp_path / "none", 8, 2, 1.0)

"""One candidate as a configuration, and what its simulation says."""

import dataclasses
from pathlib import Path

import pytest

from serving.tools.planning.measure import configured, measure
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanProbe
from serving.tools.planning.workers import evaluator
from serving.virtual.workload.errors import TraceError
from tests.tools.planning.measured import PLAN, TARGET, setting
from tests.tools.planning.traces import steady, write_trace


def test_a_candidate_becomes_pools_and_servers_on_its_nodes(tmp_path: Path) -> None:
    made = configured(setting(tmp_path), PLAN)
    assert (made.prefill.replicas, made.prefill.npus_per_instance, made.prefill.max_step_tokens) == (2, 16, 262_144)
    assert (made.decode.replicas, made.decode.npus_per_instance, made.decode.max_sequences) == (1, 64, 48 * 128)
    assert made.decode.max_step_tokens >= made.decode.max_sequences
    assert made.kvcache.replicas == PLAN.nodes == 12
    assert made.autoscaler.policy == "none"
    assert configured(setting(tmp_path, cache_nodes=5), PLAN).kvcache.replicas == 5


def test_a_light_load_keeps_everything(tmp_path: Path) -> None:
    verdict = measure(setting(steady(tmp_path / "t.jsonl", rate_per_s=1.0)), PlanProbe(PLAN))
    assert verdict.attainment == verdict.ttft_attainment == verdict.tpot_attainment == 1.0
    assert verdict.why == "every request keeps both limits"
    assert verdict.goodput_per_s == pytest.approx(1.0, rel=0.05)


def test_too_little_prefill_is_told_by_its_queue(tmp_path: Path) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=60.0, seconds=10.0)
    verdict = measure(setting(path), PlanProbe(dataclasses.replace(PLAN, prefills=1)))
    assert verdict.ttft_attainment < TARGET.attainment
    assert verdict.pace_attainment == 1, "of those that ended before the run"
    assert "TTFT misses 2 s for" in verdict.why
    assert "prefill queue held more than 2 s of work" in verdict.why
    more = measure(setting(path), PlanProbe(dataclasses.replace(PLAN, prefills=6)))
    assert more.goodput_per_s > verdict.goodput_per_s


def test_prompts_too_long_for_an_idle_instance_are_told_apart(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", [(20.0 * number, 120_000, 20) for number in range(5)])
    verdict = measure(setting(path), PlanProbe(PLAN))
    assert verdict.attainment == 0
    assert "100 % of them are too long for an idle instance of 16 NPUs" in verdict.why


def test_short_answers_slowed_by_the_handoff_are_told(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", [(5.0 * number, 60_000, 2) for number in range(5)])
    verdict = measure(setting(path), PlanProbe(PLAN))
    assert verdict.tpot_attainment < 1
    assert "TPOT misses 50 ms" in verdict.why
    assert "answers of at most 16 tokens, slowed by the handoff" in verdict.why


def test_a_faster_trace_is_harder(tmp_path: Path) -> None:
    one = setting(steady(tmp_path / "t.jsonl", rate_per_s=6.0))
    usual, faster = measure(one, PlanProbe(PLAN)), measure(one, PlanProbe(PLAN, rate=10.0))
    assert usual.attainment == 1.0 > faster.attainment


def test_the_same_probe_is_simulated_once_and_alike_in_any_number_of_processes(tmp_path: Path) -> None:
    one = setting(steady(tmp_path / "t.jsonl", rate_per_s=10.0, seconds=10.0))
    probes = [PlanProbe(PLAN), PlanProbe(dataclasses.replace(PLAN, prefills=1)), PlanProbe(PLAN)]
    told: list[PlanProbe] = []
    with evaluator(one, 1, lambda probe, _: told.append(probe)) as evaluate:
        alone = evaluate(probes)
        assert evaluate(probes[:1]) == alone[:1]
    assert told == probes[:2]
    with evaluator(one, 2, lambda *_: None) as evaluate:
        assert evaluate(probes) == alone


def test_the_busiest_stretch_is_where_most_tokens_are(tmp_path: Path) -> None:
    calm = [(10.0 * number, 1000, 10) for number in range(100)]
    storm = [(600.0 + number, 1000, 10) for number in range(100)]
    path = write_trace(tmp_path / "t.jsonl", sorted(calm + storm))
    found = TraceChoice(path).busiest()
    assert found.start_s <= 600.0 < 650.0 < found.start_s + (found.duration_s or 0)
    assert (found.duration_s or 0) < 250
    assert (found.open().count or 0) > 100


def test_a_short_trace_is_its_own_stretch(tmp_path: Path) -> None:
    trace = TraceChoice(steady(tmp_path / "t.jsonl", seconds=40.0))
    assert trace.busiest() == trace


def test_an_empty_trace_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(TraceError):
        TraceChoice(tmp_path / "t.jsonl").busiest()

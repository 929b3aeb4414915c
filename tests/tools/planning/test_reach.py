"""A run ends once its target is out of reach, with the same verdict on the plan as a complete one."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import TargetReach, configured, measure
from serving.tools.planning.planner import evaluator
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanProbe, PlanTarget
from serving.virtual.result import Outcome, RequestColumns
from serving.virtual.workload.columns import TraceError
from tests.tools.planning.measured import PLAN, TARGET, setting
from tests.tools.planning.traces import steady, write_trace

FEW = dataclasses.replace(PLAN, prefills=1)


def requests(rows: list[tuple[float, float, float, int]]) -> RequestColumns:
    """Rows of (arrival, first token, finish, tokens), nan = not yet."""
    found = RequestColumns()
    for arrival, first, finish, tokens in rows:
        for column in dataclasses.fields(found):
            getattr(found, column.name).append(0)
        found.arrival_s[-1], found.first_token_s[-1], found.finish_s[-1] = arrival, first, finish
        found.output_tokens[-1] = tokens
        found.outcome[-1] = Outcome.UNFINISHED if finish != finish else Outcome.FINISHED
    return found


NAN = float("nan")


@pytest.mark.parametrize(
    ("now", "lost"),
    [(11.9, False), (12.1, True)],
    ids=["the second may still come in time", "two of ten are too late, one is allowed"],
)
def test_a_request_without_a_token_is_late_when_its_time_is_over(now: float, lost: bool) -> None:
    reach = TargetReach(PlanTarget(2.0, 0.05, 0.9), 10)
    assert reach(now, requests([(1.0, 8.0, NAN, 1), (10.0, NAN, NAN, 0)])) is lost is reach.lost


def test_each_limit_is_counted_by_itself() -> None:
    """One late and one slow request, of which one is allowed: the pools missed one each."""
    late, slow = (0.0, 3.0, 3.0, 1), (0.0, 1.0, 11.0, 11)
    reach = TargetReach(PlanTarget(2.0, 0.05, 0.9), 10)
    assert not reach(20.0, requests([late, slow]))
    assert reach(20.0, requests([late, slow, slow]))
    assert not TargetReach(TARGET, 10)(0.0, RequestColumns())


@given(late=st.integers(0, 40), of=st.integers(40, 60), attainment=st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_lost_is_what_no_further_request_can_mend(late: int, of: int, attainment: float) -> None:
    reach = TargetReach(PlanTarget(2.0, 0.05, attainment), of)
    reach(100.0, requests([(0.0, 3.0, 3.0, 1)] * late + [(0.0, 1.0, 1.0, 1)]))
    assert reach.lost == (not np.isclose((of - late) / of, attainment) and (of - late) / of < attainment)


@pytest.mark.nightly(
    "tests/tools/planning/test_planner.py::test_the_plan_holds_one_instance_less_does_not_and_the_others_say_why"
)
def test_a_plan_that_misses_is_ended_early_with_the_same_answer(tmp_path: Path) -> None:
    path = steady(tmp_path / "t1.jsonl", rate_per_s=60.0, seconds=45.0)
    whole, ended = (measure(setting(path), PlanProbe(FEW, may_stop=stops)) for stops in (False, True))
    assert whole.stopped_s is None
    assert ended.stopped_s is not None
    assert ended.stopped_s < 40, "it is looked at every 4,000 events"
    assert ended.events < whole.events
    assert not ended.holds(TARGET)
    assert not whole.holds(TARGET)
    assert ended.ttft_attainment < TARGET.attainment
    assert "where the run was ended" in ended.why
    one = setting(steady(tmp_path / "t2.jsonl", rate_per_s=2.0))
    whole, other = (measure(one, PlanProbe(PLAN, may_stop=stops)) for stops in (False, True))
    assert whole == other


def test_tpot_ends_a_run_as_well(tmp_path: Path) -> None:
    """No step takes as little as 1 ms: every response is slow, none is late."""
    target = PlanTarget(2.0, 0.001, 0.95)
    path = steady(tmp_path / "t.jsonl", rate_per_s=20.0, seconds=30.0)
    plan = Candidate(Shape(16, 16_384), 4, Shape(64, 48), 1)
    verdict = measure(setting(path, target), PlanProbe(plan, may_stop=True))
    assert verdict.stopped_s is not None
    assert verdict.tpot_attainment == 0
    assert verdict.ttft_attainment > target.attainment


def test_a_candidate_becomes_pools_and_servers_on_its_nodes(tmp_path: Path) -> None:
    made = configured(setting(tmp_path), PLAN)
    assert (made.prefill.replicas, made.prefill.npus_per_instance, made.prefill.max_step_tokens) == (2, 16, 262_144)
    assert (made.decode.replicas, made.decode.npus_per_instance, made.decode.max_sequences) == (1, 64, 48 * 128)
    assert made.decode.max_step_tokens >= made.decode.max_sequences
    assert made.kvcache.replicas == PLAN.nodes == 12
    assert made.autoscaler.policy == "none"
    assert configured(setting(tmp_path, cache_nodes=5), PLAN).kvcache.replicas == 5


def test_a_light_load_keeps_everything_and_a_faster_one_does_not(tmp_path: Path) -> None:
    verdict = measure(setting(steady(tmp_path / "t3.jsonl", rate_per_s=1.0)), PlanProbe(PLAN))
    assert verdict.attainment == verdict.ttft_attainment == verdict.tpot_attainment == 1.0
    assert verdict.why == "every request keeps both limits"
    assert verdict.goodput_per_s == pytest.approx(1.0, rel=0.05)
    one = setting(steady(tmp_path / "t4.jsonl", rate_per_s=6.0))
    usual, faster = measure(one, PlanProbe(PLAN)), measure(one, PlanProbe(PLAN, rate=10.0))
    assert usual.attainment == 1.0 > faster.attainment


def test_why_a_candidate_misses_is_told(tmp_path: Path) -> None:
    path = steady(tmp_path / "t5.jsonl", rate_per_s=60.0, seconds=10.0)
    verdict = measure(setting(path), PlanProbe(dataclasses.replace(PLAN, prefills=1)))
    assert verdict.ttft_attainment < TARGET.attainment
    assert verdict.pace_attainment == 1, "of those that ended before the run"
    assert "TTFT misses 2 s for" in verdict.why
    assert "prefill queue held more than 2 s of work" in verdict.why
    more = measure(setting(path), PlanProbe(dataclasses.replace(PLAN, prefills=6)))
    assert more.goodput_per_s > verdict.goodput_per_s

    path = write_trace(tmp_path / "t6.jsonl", [(20.0 * number, 120_000, 20) for number in range(5)])
    verdict = measure(setting(path), PlanProbe(PLAN))
    assert verdict.attainment == 0
    assert "100 % of them are too long for an idle instance of 16 NPUs" in verdict.why

    path = write_trace(tmp_path / "t7.jsonl", [(5.0 * number, 60_000, 2) for number in range(5)])
    verdict = measure(setting(path), PlanProbe(PLAN))
    assert verdict.tpot_attainment < 1
    assert "TPOT misses 50 ms" in verdict.why
    assert "answers of at most 16 tokens, slowed by the handoff" in verdict.why


@pytest.mark.nightly(
    "tests/tools/planning/test_planner.py::test_the_plan_holds_one_instance_less_does_not_and_the_others_say_why"
)
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
    trace = TraceChoice(steady(tmp_path / "short.jsonl", seconds=40.0))
    assert trace.busiest() == trace
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError):
        TraceChoice(tmp_path / "empty.jsonl").busiest()

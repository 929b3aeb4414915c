"""A run ends once its target is out of reach, and says the same of the plan as one that goes on."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.measure import measure
from serving.tools.planning.reach import TargetReach
from serving.tools.planning.verdict import PlanProbe, PlanTarget
from serving.virtual.result import Outcome, RequestColumns
from tests.tools.planning.measured import PLAN, TARGET, setting
from tests.tools.planning.traces import steady

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


def test_nothing_has_missed_before_anything_arrived() -> None:
    assert not TargetReach(TARGET, 10)(0.0, RequestColumns())


@given(late=st.integers(0, 40), of=st.integers(40, 60), attainment=st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_lost_is_what_no_further_request_can_mend(late: int, of: int, attainment: float) -> None:
    reach = TargetReach(PlanTarget(2.0, 0.05, attainment), of)
    reach(100.0, requests([(0.0, 3.0, 3.0, 1)] * late + [(0.0, 1.0, 1.0, 1)]))
    assert reach.lost == (not np.isclose((of - late) / of, attainment) and (of - late) / of < attainment)


def test_a_plan_that_misses_is_ended_early_with_the_same_answer(tmp_path: Path) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=60.0, seconds=60.0)
    whole, ended = (measure(setting(path), PlanProbe(FEW, may_stop=stops)) for stops in (False, True))
    assert whole.stopped_s is None
    assert ended.stopped_s is not None
    assert ended.stopped_s < 50, "it is looked at every 4,000 events"
    assert ended.events < whole.events
    assert not ended.holds(TARGET)
    assert not whole.holds(TARGET)
    assert ended.ttft_attainment < TARGET.attainment
    assert "where the run was ended" in ended.why


def test_a_plan_that_holds_is_played_to_its_end(tmp_path: Path) -> None:
    one = setting(steady(tmp_path / "t.jsonl", rate_per_s=2.0))
    whole, other = (measure(one, PlanProbe(PLAN, may_stop=stops)) for stops in (False, True))
    assert whole == other


def test_tpot_ends_a_run_as_well(tmp_path: Path) -> None:
    """No step takes as little as 1 ms: every answer is slow, none is late."""
    target = PlanTarget(2.0, 0.001, 0.95)
    path = steady(tmp_path / "t.jsonl", rate_per_s=20.0, seconds=30.0)
    plan = Candidate(Shape(16, 16_384), 4, Shape(64, 48), 1)
    verdict = measure(setting(path, target), PlanProbe(plan, may_stop=True))
    assert verdict.stopped_s is not None
    assert verdict.tpot_attainment == 0
    assert verdict.ttft_attainment > target.attainment

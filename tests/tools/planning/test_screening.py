"""Screening: close to the simulation of the same plan, and never the answer by itself."""

import dataclasses
from pathlib import Path

import pytest

from serving.tools.planning import words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, SearchSpace, Shape
from serving.tools.planning.candidate_run import measure
from serving.tools.planning.knowledge import Knowledge
from serving.tools.planning.npu_search import confirm, find_least
from serving.tools.planning.plan import CapacityPlan, ScreenedPlan
from serving.tools.planning.planner import PlanQuestion, plan
from serving.tools.planning.screening import Screen, can_screen
from serving.tools.planning.screening_queues import prefix_hits
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanProbe, PlanTarget
from serving.virtual.workload.columns import TraceRequest
from tests.tools.planning.fake import FakeSupernode
from tests.tools.planning.measured import PLAN, TARGET, setting
from tests.tools.planning.traces import config, steady, write_trace


@pytest.mark.parametrize(("prefills", "prompt", "output"), [(1, 6000, 40), (2, 6000, 40), (2, 300, 1)])
def test_a_screened_plan_has_nearly_the_latencies_of_its_simulation(
    prefills: int, prompt: int, output: int, tmp_path: Path
) -> None:
    trace = steady(tmp_path / "a.jsonl", rate_per_s=20.0, seconds=4.0, prompt=prompt, output=output)
    probe = PlanProbe(dataclasses.replace(PLAN, prefills=prefills))
    screened, simulated = Screen(setting(trace))(probe), measure(setting(trace), probe)
    assert screened.screened
    assert screened.holds(TARGET) == simulated.holds(TARGET)
    assert screened.ttft_p99_s == pytest.approx(simulated.ttft_p99_s, rel=0.15)
    assert screened.tpot_p99_s == pytest.approx(simulated.tpot_p99_s, rel=0.1, nan_ok=True)
    assert screened.attainment == pytest.approx(simulated.attainment, abs=0.02)
    assert screened.why.startswith("screened: ")


def test_a_probe_that_may_stop_is_not_decoded_once_ttft_is_lost(tmp_path: Path) -> None:
    trace = steady(tmp_path / "a.jsonl", rate_per_s=100.0, seconds=2.0)
    one = Screen(setting(trace, PlanTarget(0.2, 0.05, 0.95)))
    lost = one(PlanProbe(PLAN, may_stop=True))
    assert lost.ttft_attainment == one(PlanProbe(PLAN)).ttft_attainment < 0.95
    assert lost.tpot_p99_s != lost.tpot_p99_s
    assert lost.tpot_attainment == 1


def test_full_dies_let_sequences_wait(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "a.jsonl", [(0.0, 1000, 100)] * 80)
    narrow = Candidate(PLAN.prefill, 2, Shape(16, 1), 1)
    screened, simulated = Screen(setting(trace))(PlanProbe(narrow)), measure(setting(trace), PlanProbe(narrow))
    assert screened.batch == simulated.batch == 1
    assert screened.tpot_p99_s == pytest.approx(simulated.tpot_p99_s, rel=0.15), "each wait is for a whole sequence"


def test_a_pool_keeps_the_prefixes_used_last() -> None:
    def asked(*blocks: int, tokens: int = 0) -> TraceRequest:
        return TraceRequest(0.0, tokens or 10 * len(blocks) + 1, 1, blocks)

    trace = [asked(1, 2, 3), asked(1, 2, 4), asked(7, 8, 9), asked(1, 2, 3), asked(1, 2, tokens=20)]
    assert prefix_hits(trace, 10, 1000) == [0, 20, 0, 30, 10]
    assert prefix_hits(trace, 10, 30) == [0, 20, 0, 0, 10]
    assert prefix_hits(trace, 10, 0) == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("error", [-1, 0, 1])
def test_simulations_decide_where_screening_is_wrong(error: int) -> None:
    space = SearchSpace((Shape(2, 100),), (Shape(4, 8),), 40)
    real = FakeSupernode({Shape(2, 100): 4}, {Shape(4, 8): 3})
    guess = FakeSupernode({Shape(2, 100): 4 + error}, {Shape(4, 8): 3 + error})
    target = PlanTarget(2.0, 0.05, 0.9)
    first, known = Knowledge(space, target, {}, {}), Knowledge(space, target, {}, {})
    find_least(first, lambda probes: [dataclasses.replace(one, screened=True) for one in guess.evaluate(probes)])
    best = confirm(known, first, real.evaluate)
    if error < 0:  # none of what it named holds, so the whole search is simulated
        assert best is None or known.tried[best].holds(target)
        best = best or find_least(known, real.evaluate)
    assert best == Candidate(Shape(2, 100), 4, Shape(4, 8), 3)
    if not error:
        assert len(real.asked) == 3  # it, and one instance less in either pool


def test_a_closed_loop_and_drawn_experts_are_not_screened(tmp_path: Path) -> None:
    usual = setting(steady(tmp_path / "a.jsonl"))
    assert can_screen(usual)
    assert not can_screen(dataclasses.replace(usual, trace=TraceChoice(usual.trace.path, concurrency=4)))
    drawn = dataclasses.replace(config(), simulation=dataclasses.replace(config().simulation, routing="skew"))
    assert not can_screen(dataclasses.replace(usual, config=drawn))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> PlanQuestion:
    trace = steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=40.0, seconds=2.0)
    return PlanQuestion(config(), TraceChoice(trace), TARGET, SearchLimits((16, 32), (64, 160), 384), "least")


@pytest.fixture(scope="module")
def found(asked: PlanQuestion) -> CapacityPlan:
    return plan(asked)


def test_an_answer_shows_both_and_how_far_they_are_apart(found: CapacityPlan) -> None:
    assert found.best is not None
    table = words.screened_table(found)
    (row,) = [one for one in found.screened if one.candidate == found.best.candidate]
    assert row.simulated == found.best.verdict
    assert len(table.rows) == len(found.screened)
    assert table.note.startswith("Screening and simulation agree on")
    off = dataclasses.replace(row.screened, attainment=0.0, ttft_p99_s=9.0)
    text = words.agreement(dataclasses.replace(found, screened=[ScreenedPlan(row.candidate, off, row.simulated)]))
    assert text.startswith("Screening and simulation disagree, so trust the simulation: ")
    assert f"{row.candidate.label} misses screened and holds simulated" in text
    assert "TTFT p99 9.00 s screened, " in text


def test_headroom_is_in_the_answer_and_multiplies_the_arrivals(asked: PlanQuestion, found: CapacityPlan) -> None:
    assert found.best is not None
    npus = found.best.candidate.npus
    facts = dict(words.facts(found))
    assert facts["headroom"].startswith(f"none: {npus} NPUs hold the load as it is given. DeepSeek's own service")
    assert found.twice is not None
    assert f"({found.twice.npus} NPUs by screening: {found.twice.label})" in facts["headroom"]
    double = plan(dataclasses.replace(asked, load_factor=2.0))
    assert double.best is not None
    assert double.best.candidate.npus == found.twice.npus > npus
    assert double.twice is None
    assert double.demand.requests_per_s == pytest.approx(2 * found.demand.requests_per_s)
    assert "at 2 x the given arrival rate" in words.headline(double)
    assert dict(words.facts(double))["headroom"].startswith("the load is 2 x the given one. DeepSeek")

"""Headroom and losses of a plan: on a supernode with known results, and in simulations."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.faults import FaultKind
from serving.tools.planning import words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting, configured, measure
from serving.tools.planning.files import markdown, page
from serving.tools.planning.margins import MOST, Headroom, headroom, highest_that_holds, losses
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion, plan
from serving.tools.planning.trace import TraceChoice, opened
from serving.tools.planning.verdict import (
    LOSSES,
    PlanLoss,
    PlanProbe,
    PlanTarget,
    faults,
    loss_text,
    spare_npus,
    with_spares,
)
from serving.virtual.simulation import simulate
from tests.tools.planning.fake import FakeSupernode
from tests.tools.planning.traces import config, steady, write_trace

TARGET = PlanTarget(2.0, 0.05, 0.9)
PREFILL, DECODE = Shape(16, 16_384), Shape(32, 48)
PLAN = Candidate(PREFILL, 2, DECODE, 1)


@given(prefills=st.integers(1, 20), decodes=st.integers(1, 20), rate=st.sampled_from([0.5, 1.0, 3.0]))
@settings(deadline=None, max_examples=40)
def test_each_slo_breaks_where_its_pool_is_too_small(prefills: int, decodes: int, rate: float) -> None:
    """A pool that needs one instance a load keeps nine of ten with 0.4 of an instance too few."""
    one = Candidate(PREFILL, prefills, DECODE, decodes)
    fake = FakeSupernode({PREFILL: 2}, {DECODE: 3})
    found = headroom(one, rate, TARGET, fake.evaluate)
    for factor, there, needs in ((found.ttft, prefills, 2), (found.tpot, decodes, 3)):
        edge = (there + 0.4) / needs / rate
        if edge > 2 * MOST:
            assert factor == MOST
        elif edge < 0.5 / MOST:
            assert factor == 0
        elif factor not in (0, MOST):
            assert edge / 1.06 <= factor <= edge
    assert len({probe.rate for probe in fake.asked}) <= 16
    assert all(probe.whole and probe.candidate == one for probe in fake.asked)


@pytest.mark.parametrize(
    ("edge", "low", "high"), [(5.0, 4.76, 5.0), (0.3, 0.285, 0.3), (100.0, 8.0, 8.0), (0.01, 0, 0)]
)
def test_the_edge_is_found_from_either_side_within_bounds(edge: float, low: float, high: float) -> None:
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= edge

    assert low <= highest_that_holds(holds, 1.0, 2.0, 1.05, MOST) <= high
    assert 1 / MOST <= min(tried) <= max(tried) <= MOST
    assert len(tried) <= 9


def test_a_loss_hits_the_first_instance_of_its_pool() -> None:
    def hit(unit: str, pool: str, one: Candidate = PLAN) -> list[tuple[FaultKind, str]]:
        loss = next(each for each in LOSSES if (each.unit, each.pool) == (unit, pool))
        return [(fault.kind, fault.target) for fault in faults(loss, one, 30.0)]

    assert hit("npu", "prefill") == [(FaultKind.NPU, "n0.npu0")]
    assert hit("npu", "decode") == [(FaultKind.NPU, "n4.npu0")]
    assert hit("node", "decode") == [(FaultKind.NODE, "n4")]
    assert hit("instance", "prefill") == [(FaultKind.NODE, "n0"), (FaultKind.NODE, "n1")]
    assert hit("instance", "decode") == [(FaultKind.NODE, f"n{n}") for n in (4, 5, 6, 7)]
    small = Candidate(Shape(2, 1), 3, Shape(4, 1), 2)
    assert hit("npu", "decode", small) == [(FaultKind.NPU, "n0.npu6")]
    assert hit("instance", "decode", small) == [(FaultKind.NODE, "n0"), (FaultKind.NODE, "n1")]


def test_spare_npus_are_those_of_one_more_instance_as_far_as_there_are_any() -> None:
    node, instance = PlanLoss("node", "decode"), PlanLoss("instance", "decode")
    assert with_spares(config(), node, PLAN).cluster.npus == PLAN.npus + 32
    assert with_spares(config(), instance, PLAN).cluster.npus == PLAN.npus
    full = Candidate(PREFILL, 6, Shape(288, 48), 1)
    assert spare_npus(node, full) == 0
    assert "no spare NPUs" in loss_text(node, full)
    assert "starts again on 32 spare NPUs after 83.1 s" in loss_text(node, PLAN)
    small = Candidate(Shape(2, 1), 3, Shape(4, 1), 2)
    assert "a node with all of its decode instances" in loss_text(instance, small)
    texts = {loss_text(loss, one) for loss in LOSSES for one in (PLAN, full, small)}
    assert all("12.8 s" in text or "83.1 s" in text or "no spare NPUs" in text for text in texts)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=13.0, seconds=8.0, prompt=4000)


@pytest.mark.nightly("tests/tools/planning/test_modes.py::test_losses_are_of_the_one_pool")
def test_a_loss_costs_what_its_instance_did_and_the_larger_one_costs_more(tmp_path: Path) -> None:
    trace = steady(tmp_path / "t.jsonl", rate_per_s=13.0, seconds=60.0, prompt=4000)
    setting = PlanSetting(config(), TraceChoice(trace), TraceChoice(trace), TARGET)
    found = losses(PLAN, 1.0, TARGET, lambda probes: [measure(setting, probe) for probe in probes])
    nothing, *lost = found
    assert (nothing.what, nothing.attainment, nothing.hit, nothing.holds) == ("nothing", 1.0, 0, True)
    assert len(lost) == len(LOSSES)
    by_loss = dict(zip(LOSSES, lost, strict=True))
    npu, node, instance = (by_loss[PlanLoss(unit, "decode")] for unit in ("npu", "node", "instance"))
    assert 1.0 > npu.attainment > node.attainment >= instance.attainment
    assert node.hit > 0
    assert all(one.whole_attainment >= one.attainment for one in lost)


def test_an_instance_without_spare_npus_stays_away_and_one_with_them_comes_back(tmp_path: Path) -> None:
    choice = TraceChoice(write_trace(tmp_path / "t.jsonl", [(10.0 * number, 4000, 10) for number in range(15)]))
    setting, workload = PlanSetting(config(), choice, choice, TARGET), choice.open()
    back = {}
    for unit in ("node", "instance"):
        loss = next(one for one in LOSSES if (one.unit, one.pool) == (unit, "decode"))
        settings = with_spares(configured(setting, PLAN), loss, PLAN)
        result = simulate(settings, workload, faults=faults(loss, PLAN, 5.0), stop_s=150.0)
        back[unit] = [one.name for one in result.instances if one.pool == "decode"]
    assert back == {"node": ["decode-0", "decode-1"], "instance": ["decode-0"]}


def test_the_worst_moment_and_what_came_too_late(tmp_path: Path) -> None:
    rows = [(10.0 * number, 1000, 10) for number in range(30)] + [(130.0 + number, 1000, 10) for number in range(40)]
    facts = opened(TraceChoice(write_trace(tmp_path / "t.jsonl", sorted(rows))))[1]
    assert facts.worst_s == 150.0
    short = opened(TraceChoice(write_trace(tmp_path / "s.jsonl", [(0.0, 10, 10), (8.0, 10, 10)])))[1]
    assert short.worst_s == 4.0

    # Far more prompts than prefill can compute: those that come through are decoded as quickly as ever.
    path = steady(tmp_path / "late.jsonl", rate_per_s=60.0, seconds=10.0, output=100)
    setting = PlanSetting(config(), TraceChoice(path), TraceChoice(path), TARGET)
    verdict = measure(setting, PlanProbe(dataclasses.replace(PLAN, prefills=1)))
    assert verdict.ttft_attainment < 0.9
    assert verdict.tpot_attainment < verdict.pace_attainment
    assert verdict.pace_attainment > 0.99


@pytest.fixture(scope="module")
def order(trace: Path) -> PlanQuestion:
    wanted = SearchLimits((16,), (32,), 80, (16_384,), (48,))
    return PlanQuestion(config(), TraceChoice(trace), TARGET, wanted, "least")


@pytest.fixture(scope="module")
def bare(order: PlanQuestion) -> CapacityPlan:
    return plan(order)


@pytest.mark.nightly(
    "tests/tools/planning/test_planner.py::test_the_plan_holds_one_instance_less_does_not_and_the_others_say_why"
)
def test_a_plan_shows_its_margins_only_when_asked(order: PlanQuestion, bare: CapacityPlan) -> None:
    assert (bare.headroom, bare.losses, words.headroom_text(bare)) == (None, [], "")
    assert "Headroom" not in page(bare)
    asked = plan(dataclasses.replace(order, headroom=True, losses=True))
    assert asked.best == bare.best
    assert asked.headroom is not None
    assert 1 <= asked.headroom.ttft <= MOST
    for text in (markdown(asked), page(asked)):
        assert words.headroom_text(asked) in text
        assert all(one.what in text for one in asked.losses)


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (Headroom(MOST, 1.42), "TTFT up to 8 x this load (the most that was tried) and TPOT up to 1.42 x this load."),
        (
            Headroom(0.0, 0.25),
            "TTFT not even at 0.125 x this load and TPOT up to 0.25 x this load. Where prompts wait for prefill, "
            "decode gets no more load.",
        ),
    ],
)
def test_headroom_in_words(bare: CapacityPlan, room: Headroom, text: str) -> None:
    found = dataclasses.replace(bare, headroom=room)
    assert words.headroom_text(found).endswith(text)
    assert not math.isnan(room.ttft)

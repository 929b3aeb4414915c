"""`plan --attention-tp`: how many dies of a decode instance share their sequences is one more choice."""

from pathlib import Path

import pytest

from hardware.cost import CostModel
from serving.cli import command_parser
from serving.cli import plan as command
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.comparison import split_of
from serving.tools.planning.feasible import SearchStart, start
from serving.tools.planning.limits import SearchLimits
from serving.tools.planning.load_figures import shape_bounds
from serving.tools.planning.measure import PlanSetting, configured
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.measured import LOAD
from tests.tools.planning.traces import CONFIG_FILE, config, steady

CONFIG = config()


def begin(cost: CostModel, tps: tuple[int, ...], tpot_s: float = 0.05, sizes: tuple[int, ...] = (64,)) -> SearchStart:
    wanted = SearchLimits((16,), sizes, 384, (), (24,), tps)
    return start(cost, CONFIG, LOAD, wanted, PlanTarget(2.0, tpot_s, 0.9))


def test_each_degree_is_a_shape_of_its_own(cost: CostModel) -> None:
    found = begin(cost, (1, 4), sizes=(32, 64))
    assert found.space.decode == tuple(Shape(npus, 24, tp) for tp in (1, 4) for npus in (32, 64))
    assert {one.size for one in found.space.plain().decode} == {(npus, tp, 0, -1) for npus in (32, 64) for tp in (1, 4)}
    assert begin(cost, ()).space.decode == (Shape(64, 24, 1),)
    one, four = (Candidate(Shape(16, 1024), 1, Shape(64, 24, tp), 1) for tp in (1, 4))
    assert (one.label, four.label) == ("1 x 16 + 1 x 64", "1 x 16 + 1 x 64 TP4")
    assert four not in found.space.variants(one), "another degree is no other batch limit"
    rows = shape_bounds(cost, CONFIG, LOAD, found, PlanTarget(2.0, 0.05, 0.9))
    assert [row.division for row in rows if row.pool == "decode"] == ["", "", " TP4", " TP4"]


def test_bounds_are_those_of_the_degree(cost: CostModel) -> None:
    """Between the least steps of two degrees only the one that is faster for few sequences can hold."""
    apart, shared = (bounds.least_step_s(bounds.decode_cost(cost, tp), 64, 1000.0, 1) for tp in (1, 8))
    assert shared < apart
    slow, fast = (bounds.decode_times(bounds.decode_cost(cost, tp), CONFIG, LOAD, 64).max() for tp in (1, 8))
    found = begin(cost, (1, 8), tpot_s=float((slow + fast) / 2))
    assert [one.attention_tp for one in found.space.decode] == [8]
    assert [one.what for one in found.dropped] == ["decode instances of 64 NPUs"]
    with pytest.raises(ConfigError, match=r"TPOT of .* (the smallest possible is|relax --tpot)"):
        begin(cost, (1, 8), tpot_s=float(fast / 2))


def test_what_cannot_be_divided_is_named(cost: CostModel) -> None:
    found = begin(cost, (8,), sizes=(30, 64))
    assert found.space.decode == (Shape(64, 24, 8),)
    assert [one.what for one in found.dropped] == ["decode instances of 30 NPUs, attention TP 8"]
    assert "attention_tp is 8, which does not divide an instance of 60 dies" in found.dropped[0].why
    with pytest.raises(ConfigError, match="attention_tp is 3, which does not divide the 128 heads of"):
        begin(cost, (1, 3))


def test_a_candidate_is_simulated_with_its_degree() -> None:
    trace = TraceChoice(Path("none"))
    setting = PlanSetting(CONFIG, trace, trace, PlanTarget(2.0, 0.05, 0.9))
    candidate = Candidate(Shape(16, 1024), 1, Shape(64, 24, 4), 1)
    settings = configured(setting, candidate)
    assert settings.simulation.decode_attention_tp == 4
    assert split_of(settings) == candidate


def test_a_search_takes_the_degree_that_holds(cost: CostModel, tmp_path: Path) -> None:
    """At this pace one idle die is too slow for its sequence, and eight that share it are not."""
    path = steady(tmp_path / "t.jsonl", rate_per_s=2.0, seconds=20.0)
    slow, fast = (bounds.least_step_s(bounds.decode_cost(cost, tp), 32, 1000.0, 1) / 1.7 for tp in (1, 8))
    target = PlanTarget(2.0, 0.5 * slow + 0.5 * fast, 0.5)

    def answer(*tps: int) -> CapacityPlan:
        wanted = SearchLimits((16,), (32,), 64, (16_384,), (24,), tps)
        return planned(PlanQuestion(CONFIG, TraceChoice(path), target, wanted, "least"))

    found = answer(1, 8)
    assert found.best is not None
    assert found.best.candidate.decode == Shape(32, 24, 8)
    assert "not checked: no row has attention TP 8" in found.accuracy
    assert found.config is not None
    assert found.config.simulation.decode_attention_tp == 8
    with pytest.raises(ConfigError, match=r"the smallest possible is .* in an idle instance of 32 NPUs"):
        answer(1)


def test_the_flag() -> None:
    def parsed(*words: str) -> PlanQuestion:
        return command.order_of(command_parser("plan").parse_args(["plan", *words]))

    given = parsed("--config", str(CONFIG_FILE), "--trace", "t", "--attention-tp", "1,2,4")
    assert given.wanted.attention_tp == (1, 2, 4)
    assert parsed("--config", str(CONFIG_FILE), "--trace", "t").wanted.attention_tp == ()
    compared = command_parser("plan").parse_args(
        ["plan", "--compare", "a.toml", "b.toml", "--trace", "t", "--attention-tp", "2"]
    )
    with pytest.raises(ConfigError, match="--attention-tp is for a search"):
        command.comparison_of(compared)

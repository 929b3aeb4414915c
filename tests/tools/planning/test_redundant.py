"""`plan --redundant`: how many copies of experts instances have is one more choice."""

from pathlib import Path

import pytest

from hardware.cost import CostModel
from serving.cli import command_parser
from serving.cli import plan as command
from serving.config.load import load_config
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.comparison import split_of
from serving.tools.planning.configuration import planned_text
from serving.tools.planning.feasible import SearchStart, start
from serving.tools.planning.limits import SearchLimits
from serving.tools.planning.measure import PlanSetting, configured
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.measured import LOAD
from tests.tools.planning.traces import CONFIG_FILE, config, steady

CONFIG = config()
TARGET = PlanTarget(2.0, 0.1, 0.9)


def begin(cost: CostModel, copies: tuple[int, ...], sizes: tuple[int, ...] = (16, 64)) -> SearchStart:
    return start(cost, CONFIG, LOAD, SearchLimits((16,), sizes, 384, (), (24,), (), (), copies), TARGET)


def test_each_number_is_a_shape_of_its_own(cost: CostModel) -> None:
    found = begin(cost, (0, 32), sizes=(32, 64))
    assert found.space.decode == tuple(Shape(npus, 24, 1, 0, copies) for copies in (0, 32) for npus in (32, 64))
    assert begin(cost, (), sizes=(64,)).space.decode == (Shape(64, 24),)
    one, other = (Candidate(Shape(16, 1024), 1, Shape(64, 24, redundant=copies), 1) for copies in (-1, 0))
    assert (one.label, other.label) == ("1 x 16 + 1 x 64", "1 x 16 + 1 x 64 R0")
    slow, fast = (bounds.shape_cost(cost, Shape(160, 0, redundant=copies)).tpot_s(96, 4096) for copies in (0, 32))
    assert slow > fast, "256 of 288 dies have an expert"
    assert bounds.shape_cost(cost, Shape(160, 0)) is cost


def test_what_does_not_fit_is_named(cost: CostModel) -> None:
    found = begin(cost, (0, 128), sizes=(8, 64))
    assert [one.what for one in found.dropped] == ["decode instances of 8 NPUs, 128 redundant experts"]
    assert Shape(8, 24, redundant=0) in found.space.decode
    with pytest.raises(ConfigError, match="no prefill size is possible; prefill instances of 16 NPUs, 1792 redundant"):
        begin(cost, (0, 1792))
    with pytest.raises(ConfigError, match="for 256 experts up to 1792 are priced"):
        begin(cost, (1793,))


def test_a_candidate_is_simulated_with_its_copies() -> None:
    trace = TraceChoice(Path("none"))
    candidate = Candidate(Shape(16, 1024), 1, Shape(64, 24, redundant=0), 1)
    settings = configured(PlanSetting(CONFIG, trace, trace, TARGET), candidate)
    assert settings.simulation.redundant_experts == 0
    assert split_of(settings) == candidate


def test_a_search_writes_what_simulate_takes(tmp_path: Path) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=2.0, seconds=20.0)
    wanted = SearchLimits((16,), (32,), 64, (16_384,), (24,), (), (), (64,))
    found = planned(PlanQuestion(CONFIG, TraceChoice(path), TARGET, wanted, "least"))
    assert found.best is not None
    assert found.best.candidate.decode == Shape(32, 24, redundant=64)
    assert "no row has 64 redundant experts" in found.accuracy
    (tmp_path / "plan.toml").write_text(planned_text(found), encoding="utf-8")
    assert load_config(tmp_path / "plan.toml").simulation.redundant_experts == 64


def test_the_flag() -> None:
    def parsed(*words: str) -> PlanQuestion:
        return command.order_of(command_parser("plan").parse_args(["plan", "--trace", "t", *words]))

    assert parsed("--config", str(CONFIG_FILE), "--redundant", "0,32").wanted.redundant == (0, 32)
    assert parsed("--config", str(CONFIG_FILE)).wanted.redundant == ()

"""`plan --expert-dies`: whether experts have dies of their own, and how many, is one more choice."""

from pathlib import Path

import pytest

from hardware.cost import CostModel
from serving.cli import command_parser
from serving.cli import plan as command
from serving.config.checks import check_consistency
from serving.config.load import load_config
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.comparison import split_of
from serving.tools.planning.configuration import planned_text
from serving.tools.planning.feasible import SearchStart, start
from serving.tools.planning.limits import SearchLimits
from serving.tools.planning.load_figures import shape_bounds
from serving.tools.planning.measure import PlanSetting, configured
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from serving.tools.planning.words import plan_table
from serving.virtual.run import simulate
from tests.tools.planning.measured import LOAD
from tests.tools.planning.traces import CONFIG_FILE, config, steady
from tests.virtual.core.case import burst

CONFIG = config()
TARGET = PlanTarget(2.0, 0.1, 0.9)


def begin(
    cost: CostModel, counts: tuple[int, ...], sizes: tuple[int, ...] = (64,), tps: tuple[int, ...] = ()
) -> SearchStart:
    return start(cost, CONFIG, LOAD, SearchLimits((16,), sizes, 384, (), (24,), tps, counts), TARGET)


def test_each_number_is_a_shape_of_its_own(cost: CostModel) -> None:
    found = begin(cost, (0, 32), sizes=(32, 64))
    assert found.space.decode == tuple(Shape(npus, 24, 1, count) for count in (0, 32) for npus in (32, 64))
    assert begin(cost, ()).space.decode == (Shape(64, 24),)
    one, other = (Candidate(Shape(16, 1024), 1, Shape(64, 24, 1, count), 1) for count in (0, 32))
    assert (one.label, other.label) == ("1 x 16 + 1 x 64", "1 x 16 + 1 x 64 E32")
    rows = [row for row in shape_bounds(cost, CONFIG, LOAD, found, TARGET) if row.pool == "decode"]
    assert [row.division for row in rows] == ["", "", " E32", " E32"]
    assert rows[3].tokens_per_s != rows[1].tokens_per_s


def test_domains_are_as_many_as_divide(cost: CostModel) -> None:
    """128 dies without 32 are three domains, without 48 two."""
    domains = [bounds.decode_cost(cost, 1, 64, count).decode.parallelism.domains for count in (32, 48)]
    assert domains == [3, 2]
    assert bounds.decode_cost(cost, 1, 64, 0) is cost


def test_what_cannot_be_is_named(cost: CostModel) -> None:
    found = begin(cost, (64,), sizes=(32, 64))
    assert found.space.decode == (Shape(64, 24, 1, 64),)
    assert [one.what for one in found.dropped] == ["decode instances of 32 NPUs, 64 dies of experts"]
    assert "expert_dies is 64, which leaves no die of 64 for attention" in found.dropped[0].why
    both = begin(cost, (0, 32), tps=(1, 2)).space.decode
    assert [(one.attention_tp, one.expert_dies) for one in both] == [(1, 0), (1, 32), (2, 0)]
    with pytest.raises(ConfigError, match="beside expert_dies only 1 is priced"):
        begin(cost, (32,), tps=(2,))


def test_a_candidate_is_simulated_with_its_dies_of_experts() -> None:
    trace = TraceChoice(Path("none"))
    setting = PlanSetting(CONFIG, trace, trace, TARGET)
    candidate = Candidate(Shape(16, 1024), 1, Shape(64, 24, 1, 48), 1)
    settings = configured(setting, candidate)
    assert (settings.simulation.expert_dies, settings.simulation.domains) == (48, 2)
    assert split_of(settings) == candidate
    check_consistency(settings, "plan", own_nodes=False)


def test_a_search_writes_what_simulate_takes(tmp_path: Path) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=2.0, seconds=20.0)

    def answer(*counts: int) -> CapacityPlan:
        wanted = SearchLimits((16,), (32,), 64, (16_384,), (24,), (), counts)
        return planned(PlanQuestion(CONFIG, TraceChoice(path), TARGET, wanted, "least"))

    found = answer(16)
    assert found.best is not None
    assert found.best.candidate.decode == Shape(32, 24, 1, 16)
    assert "one deployment only, xDeepServe's 480 + 288 dies" in found.accuracy
    assert found.config is not None
    (tmp_path / "plan.toml").write_text(planned_text(found), encoding="utf-8")
    written = load_config(tmp_path / "plan.toml")
    assert (written.simulation.expert_dies, written.simulation.domains) == (16, 3)
    assert len(simulate(written, burst(4)).requests) == 4
    assert plan_table(found).note.endswith(" E32: 32 dies hold experts only.")
    both = answer(16, 0)
    assert both.best is not None
    assert both.best.candidate.decode == Shape(32, 24), "on as many NPUs, and faster"


def test_the_flag() -> None:
    def parsed(*words: str) -> PlanQuestion:
        return command.order_of(command_parser("plan").parse_args(["plan", *words]))

    given = parsed("--config", str(CONFIG_FILE), "--trace", "t", "--expert-dies", "0,96,288")
    assert given.wanted.expert_dies == (0, 96, 288)
    assert parsed("--config", str(CONFIG_FILE), "--trace", "t").wanted.expert_dies == ()
    with pytest.raises(SystemExit):
        parsed("--trace", "t", "--expert-dies=-1")
    compared = command_parser("plan").parse_args(
        ["plan", "--compare", "a.toml", "b.toml", "--trace", "t", "--expert-dies", "96"]
    )
    with pytest.raises(ConfigError, match="--expert-dies is for a search"):
        command.comparison_of(compared)

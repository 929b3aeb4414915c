"""`plan --attention-tp`, `--expert-dies`, `--redundant`: the division of decode instances is one more choice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.cost import CostModel
from serving.cli import command_parser
from serving.cli import plan as command
from serving.config.checks import check_consistency
from serving.config.load import load_config
from serving.config.simulated_cost import simulated_cost
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting, configured
from serving.tools.planning.comparison import split_of
from serving.tools.planning.configuration import planned_text
from serving.tools.planning.feasible import SearchStart, start
from serving.tools.planning.load_figures import shape_bounds
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from serving.tools.planning.words import plan_table
from serving.virtual.simulation import simulate
from tests.tools.planning.measured import LOAD
from tests.tools.planning.traces import CONFIG_FILE, config, steady
from tests.virtual.core.case import burst

CONFIG = config()
TARGET = PlanTarget(2.0, 0.1, 0.9)
Numbers = tuple[int, ...]


def limits(
    sizes: Numbers, budget: int, tps: Numbers, dies: Numbers, copies: Numbers, chunks: Numbers = ()
) -> SearchLimits:
    return SearchLimits((16,), sizes, budget, chunks, (24,), tps, dies, copies)


def begin(
    cost: CostModel, *, sizes: Numbers = (64,), tpot_s: float = 0.1, tps: Numbers = (), dies: Numbers = (),
    copies: Numbers = (),
) -> SearchStart:  # fmt: skip
    return start(cost, CONFIG, LOAD, limits(sizes, 384, tps, dies, copies), PlanTarget(2.0, tpot_s, 0.9))


def answer(
    path: Path, target: PlanTarget = TARGET, *, tps: Numbers = (), dies: Numbers = (), copies: Numbers = ()
) -> CapacityPlan:
    """Of a search among instances of 32 NPUs."""
    wanted = limits((32,), 64, tps, dies, copies, (16_384,))
    return planned(PlanQuestion(CONFIG, TraceChoice(path), target, wanted, "least"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steady(tmp_path_factory.mktemp("trace") / "t.jsonl", rate_per_s=2.0, seconds=20.0)


def of_tp(npus: int, number: int) -> Shape:
    return Shape(npus, 24, number)


def of_dies(npus: int, number: int) -> Shape:
    return Shape(npus, 24, 1, number)


def of_copies(npus: int, number: int) -> Shape:
    return Shape(npus, 24, 1, 0, number)


@pytest.mark.parametrize(
    ("field", "shape", "numbers", "divisions"),
    [
        ("tps", of_tp, (1, 4), ["", " TP4"]),
        ("dies", of_dies, (0, 32), ["", " E32"]),
        ("copies", of_copies, (0, 32), [" R0", " R32"]),
    ],
)
def test_each_number_is_a_shape_of_its_own(
    cost: CostModel, field: str, shape: Callable[[int, int], Shape], numbers: Numbers, divisions: list[str]
) -> None:
    found = begin(cost, sizes=(32, 64), **{field: numbers})  # type: ignore[arg-type]
    assert found.space.decode == tuple(shape(npus, number) for number in numbers for npus in (32, 64))
    assert begin(cost).space.decode == (Shape(64, 24),)
    plans = [Candidate(Shape(16, 1024), 1, shape(64, number), 1) for number in numbers]
    assert [plan.label for plan in plans] == [f"1 x 16 + 1 x 64{division}" for division in divisions]
    assert plans[1] not in found.space.variants(plans[0]), "another division is no other batch limit"
    rows = [row for row in shape_bounds(cost, CONFIG, LOAD, found, TARGET) if row.pool == "decode"]
    assert [row.division for row in rows] == [division for division in divisions for _ in range(2)]
    assert rows[3].tokens_per_s != rows[1].tokens_per_s


def test_costs_are_those_of_the_division(cost: CostModel) -> None:
    """128 dies without 32 are three domains, without 48 two; and 256 of 288 dies have an expert."""
    domains = [bounds.decode_cost(cost, 1, 64, count).decode.parallelism.domains for count in (32, 48)]
    assert domains == [3, 2]
    slow, fast = (bounds.shape_cost(cost, Shape(160, 0, redundant=copies)).tpot_s(96, 4096) for copies in (0, 32))
    assert slow > fast
    assert bounds.decode_cost(cost, 1, 64, 0) is bounds.shape_cost(cost, Shape(160, 0)) is cost


def test_bounds_are_those_of_the_degree(cost: CostModel) -> None:
    """Between the minimum steps of two degrees only the one that is faster for few sequences can meet the limit."""
    apart, shared = (bounds.least_step_s(bounds.decode_cost(cost, tp), 64, 1000.0, 1) for tp in (1, 8))
    assert shared < apart
    slow, fast = (bounds.decode_times(bounds.decode_cost(cost, tp), CONFIG, LOAD, 64).max() for tp in (1, 8))
    found = begin(cost, tps=(1, 8), tpot_s=float((slow + fast) / 2))
    assert [one.attention_tp for one in found.space.decode] == [8]
    assert [one.what for one in found.dropped] == ["decode instances of 64 NPUs"]
    with pytest.raises(ConfigError, match=r"TPOT of .* (the smallest possible is|relax --tpot)"):
        begin(cost, tps=(1, 8), tpot_s=float(fast / 2))


def test_what_cannot_be_divided_is_named(cost: CostModel) -> None:
    for found, left, dropped, why in (
        (
            begin(cost, tps=(8,), sizes=(30, 64)),
            {of_tp(64, 8)},
            "30 NPUs, attention TP 8",
            "not divide an instance of 60",
        ),
        (
            begin(cost, dies=(64,), sizes=(32, 64)),
            {of_dies(64, 64)},
            "32 NPUs, 64 dies of experts",
            "leaves no die of 64",
        ),
        (begin(cost, copies=(0, 128), sizes=(8, 64)), {of_copies(8, 0)}, "8 NPUs, 128 redundant experts", ""),
    ):
        assert left <= set(found.space.decode)
        assert [one.what for one in found.dropped] == [f"decode instances of {dropped}"]
        assert why in found.dropped[0].why
    both = begin(cost, dies=(0, 32), tps=(1, 2)).space.decode
    assert [(one.attention_tp, one.expert_dies) for one in both] == [(1, 0), (1, 32), (2, 0)]
    refused: list[tuple[dict[str, Numbers], str]] = [
        ({"tps": (1, 3)}, "attention_tp is 3, which does not divide the 128 heads of"),
        ({"dies": (32,), "tps": (2,)}, "with expert_dies only 1 is priced"),
        ({"copies": (0, 1792)}, "no prefill size is possible; prefill instances of 16 NPUs, 1792 redundant"),
        ({"copies": (1793,)}, "for 256 experts up to 1792 are priced"),
    ]
    for divisions, words in refused:
        with pytest.raises(ConfigError, match=words):
            begin(cost, sizes=(16, 64), **divisions)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [of_tp(64, 4), of_dies(64, 48), of_copies(64, 0)])
def test_a_candidate_is_simulated_with_its_division(shape: Shape) -> None:
    trace = TraceChoice(Path("none"))
    candidate = Candidate(Shape(16, 1024), 1, shape, 1)
    settings = configured(PlanSetting(CONFIG, trace, trace, TARGET), candidate)
    assert settings.simulation.decode_attention_tp == shape.attention_tp
    assert settings.simulation.expert_dies == shape.expert_dies
    assert shape.redundant in (-1, settings.simulation.redundant_experts)
    assert split_of(settings) == candidate
    check_consistency(settings, "plan", own_nodes=False)


def test_with_drawn_load_copies_are_slots_of_each_rank() -> None:
    drawn, trace = replace(CONFIG, simulation=replace(CONFIG.simulation, routing="skew")), TraceChoice(Path("none"))
    cost = simulated_cost(drawn)
    for shape in (Shape(64, 24, 1, 48, 2), Shape(64, 24, 1, 0, 0)):
        candidate = Candidate(Shape(16, 1024), 1, shape, 1)
        settings = configured(PlanSetting(drawn, trace, trace, TARGET), candidate)
        assert (settings.experts.redundant, settings.simulation.redundant_experts) == (shape.redundant, -1)
        assert split_of(settings) == candidate
        check_consistency(settings, "plan", own_nodes=False)
        assert bounds.shape_cost(cost, shape).decode.parallelism == simulated_cost(settings).decode.parallelism


def test_a_search_takes_the_degree_that_holds(cost: CostModel, trace: Path) -> None:
    """At this pace one idle die is too slow for its sequence, and eight that share it are not."""
    slow, fast = (bounds.least_step_s(bounds.decode_cost(cost, tp), 32, 1000.0, 1) / 1.7 for tp in (1, 8))
    target = PlanTarget(2.0, 0.5 * slow + 0.5 * fast, 0.5)
    found = answer(trace, target, tps=(1, 8))
    assert found.best is not None
    assert found.best.candidate.decode == of_tp(32, 8)
    assert "not checked: no row has attention TP 8" in found.accuracy
    assert found.config is not None
    assert found.config.simulation.decode_attention_tp == 8
    with pytest.raises(ConfigError, match=r"the smallest possible is .* in an idle instance of 32 NPUs"):
        answer(trace, target, tps=(1,))


def test_a_search_writes_what_simulate_takes(trace: Path, tmp_path: Path) -> None:
    for found, shape, doubt in (
        (answer(trace, dies=(16,)), of_dies(32, 16), "one deployment only, xDeepServe's 480 + 288 dies"),
        (answer(trace, copies=(64,)), of_copies(32, 64), "no row has 64 redundant experts"),
    ):
        assert found.best is not None
        assert found.best.candidate.decode == shape
        assert doubt in found.accuracy
        (tmp_path / "plan.toml").write_text(planned_text(found), encoding="utf-8")
        written = load_config(tmp_path / "plan.toml")
        assert split_of(written).decode == shape
        if shape.expert_dies:
            assert written.simulation.domains == 3
            assert len(simulate(written, burst(4)).requests) == 4
            assert plan_table(found).note.endswith(" E32: 32 dies hold experts only.")
    both = answer(trace, dies=(16, 0))
    assert both.best is not None
    assert both.best.candidate.decode == Shape(32, 24), "on as many NPUs, and faster"


@pytest.mark.parametrize("flag", ["--attention-tp", "--expert-dies", "--redundant"])
def test_the_flags(flag: str) -> None:
    def parsed(*words: str) -> PlanQuestion:
        given = ["plan", "--config", str(CONFIG_FILE), "--trace", "t", *words]
        return command.order_of(command_parser("plan").parse_args(given))

    name = flag[2:].replace("-", "_")
    assert getattr(parsed(flag, "1,2,4").wanted, name) == (1, 2, 4)
    assert getattr(parsed().wanted, name) == ()
    with pytest.raises(SystemExit):
        parsed(f"{flag}=-1")
    compared = command_parser("plan").parse_args(["plan", "--compare", "a.toml", "b.toml", "--trace", "t", flag, "2"])
    with pytest.raises(ConfigError, match=f"{flag} is for a search"):
        command.comparison_of(compared)

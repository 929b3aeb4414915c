"""A plan as a file that `simulate` and `serve` read, and comparisons of files."""

import dataclasses
import json
from pathlib import Path

import pytest

from serving.cli import command_parser, plan
from serving.config.engine import PoolConfig
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch.preflight import preflight
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.comparison import ComparisonQuestion, compare, split_of
from serving.tools.planning.costs import read_prices
from serving.tools.planning.files import as_json, markdown, page, write_all
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from serving.virtual.report.latencies import Slo
from serving.virtual.report.summary import summarize
from serving.virtual.simulation import simulate
from tests.tools.planning.traces import CONFIG_FILE, steady

TARGET = PlanTarget(1.0, 0.04, 0.95)
PRICES = read_prices(CONFIG_FILE.parent.parent / "examples" / "prices.toml")
LIVE = CONFIG_FILE.with_name("cloudmatrix384-live.toml")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=20.0, seconds=8.0)


@pytest.fixture(scope="module")
def answer(trace: Path) -> CapacityPlan:
    wanted = SearchLimits((16,), (32,), 96, (16_384,), (48,))
    return planned(PlanQuestion(load_config(LIVE), TraceChoice(trace), TARGET, wanted, "least"))


def test_a_plan_is_written_as_a_file_that_simulates_as_the_plan_did(
    answer: CapacityPlan, trace: Path, tmp_path: Path
) -> None:
    paths = write_all(answer, tmp_path)
    assert [path.name for path in paths] == ["plan.md", "plan.html", "plan.json", "plan.toml"]
    config = load_config(paths[-1])
    assert answer.best is not None
    assert split_of(config) == answer.best.candidate
    assert (config.slo.ttft_s, config.slo.tpot_s, config.slo.attainment) == (1.0, 0.04, 0.95)
    figures = summarize(simulate(config, TraceChoice(trace).open()), Slo(1.0, 0.04))
    assert figures.ttft_s.p99 == answer.best.verdict.ttft_p99_s
    assert figures.goodput is not None
    assert figures.goodput.attainment == answer.best.verdict.attainment


def test_a_plan_for_the_live_supernode_passes_the_checks_before_a_start(answer: CapacityPlan, tmp_path: Path) -> None:
    config = load_config(write_all(answer, tmp_path)[-1])
    asked = load_config(LIVE)
    assert config.simulation == asked.simulation
    dies = {one: one.decode.npus_per_instance for one in (config, asked)}
    assert config.decode.ub_memory_mib / dies[config] == asked.decode.ub_memory_mib / dies[asked]
    preflight(config, own_ray=False)


def test_what_does_not_hold_is_not_written_and_programs_get_no_configuration(
    answer: CapacityPlan, tmp_path: Path
) -> None:
    assert "config" not in json.loads(as_json(answer))
    none = dataclasses.replace(answer, best=None, config=None)
    assert [path.name for path in write_all(none, tmp_path)] == ["plan.md", "plan.html", "plan.json"]


def files(folder: Path, answer: CapacityPlan) -> tuple[Path, Path]:
    """The plan, and the same with twice the decode instances."""
    text = write_all(answer, folder)[-1].read_text(encoding="utf-8")
    larger = folder / "larger.toml"
    larger.write_text(text.replace("[decode]\n", "[decode]\nreplicas = 2\n"), encoding="utf-8")
    return folder / "plan.toml", larger


def test_the_cheaper_of_two_that_hold_comes_first(answer: CapacityPlan, trace: Path, tmp_path: Path) -> None:
    plan_file, larger = files(tmp_path, answer)
    configs = tuple((file.stem, load_config(file)) for file in (larger, plan_file))
    found = compare(ComparisonQuestion(configs, TraceChoice(trace), TARGET, headroom=True))
    assert found.best is not None
    assert answer.best is not None
    assert (found.best.name, [one.name for one in found.options]) == ("plan", ["larger"])
    assert dataclasses.replace(found.best.verdict, why="") == dataclasses.replace(answer.best.verdict, why="")
    assert found.options[0].why == "holds, with 32 NPUs more than plan"
    assert found.headroom is not None
    assert found.simulations > 2
    for text in (markdown(found), page(found)):
        assert "plan comes first: " in text
        assert "larger" in text


def test_one_that_holds_comes_before_a_cheaper_one_that_does_not(
    answer: CapacityPlan, trace: Path, tmp_path: Path
) -> None:
    plan_file, _ = files(tmp_path, answer)
    good = load_config(plan_file)
    assert good.prefill.replicas > 1
    few = dataclasses.replace(good, prefill=dataclasses.replace(good.prefill, replicas=1))
    found = compare(ComparisonQuestion((("few", few), ("good", good)), TraceChoice(trace), TARGET))
    assert found.best is not None
    assert (found.best.name, found.best.holds) == ("good", True)
    assert found.options[0].why.startswith("TTFT misses 1 s for")


def typed(*words: str) -> ComparisonQuestion:
    return plan.comparison_of(command_parser("plan").parse_args(["plan", "--trace", "t", *words]))


def test_files_are_called_by_their_names_as_far_as_these_tell_them_apart(tmp_path: Path) -> None:
    twin = tmp_path / CONFIG_FILE.name
    twin.write_text(CONFIG_FILE.read_text().replace("models/", f"{CONFIG_FILE.parent}/models/"))
    names = [name for name, _ in typed("--compare", str(CONFIG_FILE), str(LIVE)).configs]
    assert names == ["cloudmatrix384", "cloudmatrix384-live"]
    assert [name for name, _ in typed("--compare", str(CONFIG_FILE), str(twin)).configs] == [
        str(CONFIG_FILE),
        str(twin),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare", str(CONFIG_FILE)), "name at least two files"),
        (("--compare", str(CONFIG_FILE), str(LIVE), "--npus", "96"), "--npus is for a search"),
        (("--compare", str(CONFIG_FILE), str(LIVE), "--sizes-decode", "64"), "--sizes-decode is for a search"),
    ],
)
def test_what_a_comparison_has_no_use_for_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        typed(*words)


def test_pools_that_change_their_size_are_refused(trace: Path) -> None:
    scaled = load_config(CONFIG_FILE.with_name("cloudmatrix384-autoscaled.toml"))
    with pytest.raises(ConfigError, match=r'scaled: \[autoscaler\] policy = "slo": .* pools that keep their size'):
        compare(ComparisonQuestion((("scaled", scaled), ("again", scaled)), TraceChoice(trace), TARGET))


def aggregated_config() -> ServeConfig:
    pool = PoolConfig(replicas=3, npus_per_instance=16, max_step_tokens=16_384, max_sequences=1536, max_waiting=10_000)
    shipped = load_config(CONFIG_FILE)
    return dataclasses.replace(
        shipped, serving=dataclasses.replace(shipped.serving, mode="aggregated"), aggregated=pool
    )


def test_instances_that_do_both_are_held_against_two_pools(answer: CapacityPlan, trace: Path, tmp_path: Path) -> None:
    two_pools = load_config(files(tmp_path, answer)[0])
    configs = (("together", aggregated_config()), ("apart", two_pools))
    found = compare(ComparisonQuestion(configs, TraceChoice(trace), TARGET))
    assert found.best is not None
    plans = {one.name: one for one in (found.best, *found.options)}
    together = plans["together"]
    assert (together.candidate.label, together.candidate.npus) == ("3 x 16 aggregated", 48)
    assert together.candidate.limits == "1,024 tokens/NPU, 48 sequences/die"
    assert 0 < together.verdict.attainment <= 1
    assert together.verdict.prefill_busy == together.verdict.decode_busy > 0
    assert "3 x 16 aggregated" in markdown(found)
    alone = compare(ComparisonQuestion((configs[0], configs[0]), TraceChoice(trace), PlanTarget(1e-3, 0.04, 0.95)))
    assert alone.best is not None
    assert "TTFT misses" in alone.best.verdict.why
    assert "nobody has published one" in alone.accuracy
    assert "comes first: 3 x 16 aggregated (48 NPUs)" in markdown(alone)


@pytest.mark.nightly("tests/tools/planning/test_modes.py::test_losses_are_of_the_one_pool")
def test_losses_and_prices_of_a_file_with_one_pool(trace: Path) -> None:
    config = aggregated_config()
    pair = (("a", config), ("b", config))
    found = compare(ComparisonQuestion(pair, TraceChoice(trace), TARGET, losses=True, prices=PRICES))
    assert found.best is not None
    assert found.best.cost is not None
    assert found.best.cost.in_per_million == found.best.cost.out_per_million > 0
    assert [one.hit > 0 for one in found.losses] == [False, True, True, True]
    assert "an aggregated instance: gone for good" in markdown(found)

"""`plan --modes`: aggregated instances are considered in addition to two pools, or alone."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.cost import CostModel
from serving.cli import command_parser
from serving.cli import plan as command
from serving.config.checks import check_consistency
from serving.config.effects import idle_lines
from serving.config.load import load_config, read_config
from serving.errors import ConfigError
from serving.tools.planning import bounds, words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Both, Candidate, SearchSpace, Shape
from serving.tools.planning.candidate_run import PlanSetting, configured
from serving.tools.planning.comparison import split_of
from serving.tools.planning.costs import plan_cost, read_prices
from serving.tools.planning.feasible import SearchStart, capacity_per_s, start
from serving.tools.planning.files import markdown, write_all
from serving.tools.planning.knowledge import Floor, Knowledge
from serving.tools.planning.load_figures import shape_bounds
from serving.tools.planning.npu_search import (
    best_split,
    find_least,
    full_splits,
    highest_rate,
    most_generous,
    neighbours,
    runner_ups,
    settled,
)
from serving.tools.planning.plan import CapacityPlan
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import PlanDemand, TraceChoice
from serving.tools.planning.verdict import LOSSES_TOGETHER, PlanTarget, PlanVerdict, loss_text
from serving.virtual.report.latencies import Slo
from serving.virtual.report.summary import summarize
from serving.virtual.simulation import simulate
from tests.tools.planning.fake import FakeSupernode
from tests.tools.planning.traces import CONFIG_FILE, config, steady

CONFIG = config()
TARGET = PlanTarget(2.0, 0.05, 0.9)
LOAD = PlanDemand(100.0, np.array([6000] * 800), np.array([300] * 800), np.array([0] * 800), True)
PREFILL = [Shape(2, 100), Shape(3, 100), Shape(5, 25)]
DECODE = [Shape(4, 8), Shape(7, 8), Shape(7, 3)]
BOTH: list[Both] = [
    (Shape(npus, tokens), Shape(npus, 8)) for npus, tokens in ((3, 100), (3, 25), (5, 100), (8, 100), (13, 100))
]
EITHER: tuple[str, ...] = ("--modes", "disaggregated,aggregated")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SearchSpace, FakeSupernode]:
    """Both kinds, or aggregated instances alone."""
    pools = draw(st.booleans())
    prefill = draw(st.lists(st.sampled_from(PREFILL), min_size=1, unique=True)) if pools else []
    decode = draw(st.lists(st.sampled_from(DECODE), min_size=1, unique=True)) if pools else []
    both = draw(st.lists(st.sampled_from(BOTH), min_size=1, unique=True))
    space = SearchSpace(tuple(prefill), tuple(decode), draw(st.integers(6, 60)), tuple(both))
    needs = st.integers(1, 12)
    fake = FakeSupernode({one: draw(needs) for one in PREFILL}, {one: draw(needs) for one in DECODE})
    fake.both_needs = {one: draw(needs) for one in BOTH}
    return space, fake


def known(space: SearchSpace) -> Knowledge:
    return Knowledge(space, TARGET, {}, {})


@given(world=worlds(), doubt=st.sampled_from([1.0, 3.0]))
@settings(deadline=None, max_examples=60)
def test_finds_the_cheapest_of_all_that_hold(world: tuple[SearchSpace, FakeSupernode], doubt: float) -> None:
    space, fake = world
    knowledge = known(space)
    best = find_least(knowledge, fake.evaluate, doubt=doubt)
    holding = [one for one in space.candidates() if fake.verdict(one).holds(TARGET)]
    assert (best is None) == (not holding)
    for candidate in space.candidates():
        assert bool(knowledge.reason(candidate)) == (candidate != best)
    if best is not None:
        assert best.npus == min(one.npus for one in holding)
        runner_ups(knowledge, best, fake.evaluate)
        after = settled(knowledge, fake.evaluate)
        assert after is not None
        assert after.npus == best.npus
        assert all(one.npus <= space.budget for one in knowledge.tried)


@given(world=worlds())
@settings(deadline=None, max_examples=30)
def test_the_highest_goodput_is_among_both(world: tuple[SearchSpace, FakeSupernode]) -> None:
    space, fake = world

    def capacity(one: Candidate) -> float:
        return fake.verdict(one).goodput_per_s

    best, tried = best_split(space, capacity, fake.evaluate, TARGET)
    full = full_splits(space.plain())
    assert (best is None) == (not full)
    if best is not None:
        assert tried[best].goodput_per_s >= max(capacity(one) for one in full)


def test_every_candidate_has_a_place_and_neighbours() -> None:
    space = SearchSpace(tuple(PREFILL), tuple(DECODE), 40, tuple(BOTH))
    ranks = [space.rank(one) for one in space.candidates()]
    assert len(set(ranks)) == len(ranks)
    apart = SearchSpace(tuple(PREFILL), tuple(DECODE), 40)
    alone = sorted(apart.candidates(), key=apart.rank)
    assert alone == [one for one in sorted(space.candidates(), key=space.rank) if not one.one_pool]

    long, short, large = BOTH[0], BOTH[1], BOTH[2]
    space = SearchSpace((), (), 12, (long, short, large))
    one = Candidate(long[0], 0, long[1], 4)
    assert space.variants(one) == [Candidate(short[0], 0, short[1], 4)]
    assert neighbours(one, space, -1) == [Candidate(long[0], 0, long[1], 3)]
    assert neighbours(one, space, +1) == []
    assert neighbours(Candidate(long[0], 0, long[1], 1), space, -1) == []
    assert [one.label for one in most_generous(space)] == ["4 x 3 aggregated", "2 x 5 aggregated"]
    assert full_splits(space.plain()) == [one, Candidate(large[0], 0, large[1], 2)]


def test_what_one_miss_says() -> None:
    """Fewer of that kind miss as well; it implies nothing for two pools of the same sizes, or for other chunks."""
    both, shorter = (Shape(4, 100), Shape(4, 8)), (Shape(4, 25), Shape(4, 8))
    space = SearchSpace((both[0],), (both[1],), 40, (both, shorter))
    knowledge = known(space)
    few = Candidate(both[0], 0, both[1], 3)
    knowledge.learn(few, FakeSupernode({}, {}, both_needs={both: 9}).verdict(few))
    out = {one for one in space.candidates() if not knowledge.open(one)}
    assert out == {Candidate(both[0], 0, both[1], count) for count in (1, 2, 3)}
    assert knowledge.reason(Candidate(both[0], 0, both[1], 1)).startswith("3 x 4 aggregated: TTFT")


def test_a_kind_that_misses_grows_in_steps_that_double() -> None:
    both = BOTH[0]
    fake = FakeSupernode({}, {}, both_needs={both: 40})
    knowledge = Knowledge(SearchSpace((), (), 300, (both,)), TARGET, {}, {}, {both: Floor(2, "by the cost model")})
    assert find_least(knowledge, fake.evaluate) == Candidate(both[0], 0, both[1], 40)
    assert all(probe.whole and probe.may_stop for probe in fake.asked)
    assert len(fake.asked) <= 20
    assert min(probe.candidate.decodes for probe in fake.asked) == 2


def test_the_highest_rate_is_of_either() -> None:
    both, prefill, decode = BOTH[0], PREFILL[0], DECODE[0]
    fake = FakeSupernode({prefill: 2}, {decode: 2}, both_needs={both: 2})
    space = SearchSpace((prefill,), (decode,), 12, (both,))
    best, rate, _ = highest_rate(space, lambda one: one.decodes, fake.evaluate, TARGET)
    assert best == Candidate(both[0], 0, both[1], 4)
    assert 2 <= rate < 2.3


# ---- by the cost model -----------------------------------------------------------------------------------------------


def begin(cost: CostModel, target: PlanTarget = TARGET, **changes: object) -> SearchStart:
    wanted = SearchLimits((16,), (32,), 96, (), (24,), modes=("disaggregated", "aggregated"), aggregated_sizes=(16, 32))
    return start(cost, CONFIG, LOAD, dataclasses.replace(wanted, **changes), target)  # type: ignore[arg-type]


def test_without_the_mode_nothing_is_offered(cost: CostModel) -> None:
    usual = SearchLimits((16,), (32,), 96, (), (24,))
    apart = start(cost, CONFIG, LOAD, usual, TARGET)
    assert (apart.space.both, apart.both) == ((), {})
    either = begin(cost)
    assert (either.prefill, either.decode, either.dropped) == (apart.prefill, apart.decode, apart.dropped)
    assert dataclasses.replace(either.space, both=()) == apart.space

    found = begin(cost)
    assert set(found.without_floors().both.values()) == {Floor(1, "")}


def test_aggregated_instances_have_chunks_batches_and_divisions(cost: CostModel) -> None:
    kinds = begin(cost).space.both
    assert kinds == tuple((Shape(npus, tokens), Shape(npus, 24)) for npus in (16, 32) for tokens in (16_384, 1024))
    alone = begin(cost, modes=("aggregated",), prefill_limits=(2048, 40), attention_tp=(1, 4), redundant=(32,))
    assert not alone.space.prefill
    assert alone.space.both == tuple(
        (Shape(npus, 2048), Shape(npus, 24, tp, 0, 32)) for tp in (1, 4) for npus in (16, 32)
    )
    assert Candidate(*(alone.space.both[2][0], 0), alone.space.both[2][1], 3).label == "3 x 16 TP4 R32 aggregated"
    assert len(alone.dropped) == 4
    assert alone.dropped[0].what == "aggregated instances of 16 NPUs at 40 tokens/NPU, 24 sequences/die"
    assert alone.dropped[0].why == "a step of 640 tokens cannot feed 768 running sequences"


def test_what_cannot_be_is_named(cost: CostModel) -> None:
    found = begin(cost, aggregated_sizes=(4, 32, 128))
    assert {one[1].npus for one in found.space.both} == {32}
    assert [one.what for one in found.dropped] == [f"aggregated instances of {npus} NPUs" for npus in (4, 128)]
    assert "does not fit on 8 dies" in found.dropped[0].why
    assert found.dropped[1].why == "one of them takes more than 96 NPUs"
    with pytest.raises(ConfigError, match=r"no aggregated size is possible \(and 1 more\); aggregated instances of 4 "):
        begin(cost, modes=("aggregated",), aggregated_sizes=(4, 128))
    with pytest.raises(ConfigError, match=r"keep them for 0 % even when idle: relax --ttft, --tpot"):
        begin(cost, PlanTarget(2.0, 1e-4, 0.9), modes=("aggregated",))


def test_what_pools_cannot_do_aggregated_instances_may_and_the_other_way_round(cost: CostModel) -> None:
    together = begin(cost, budget=32)
    assert not together.space.prefill
    assert together.dropped[-1].what == "prefill and decode pools"
    assert together.dropped[-1].why.startswith("no decode size is possible")
    apart = begin(cost, aggregated_sizes=(4,))
    assert apart.space.prefill
    assert not apart.space.both
    with pytest.raises(ConfigError, match="no decode size is possible"):
        begin(cost, budget=32, aggregated_sizes=(4,))


def test_floors_and_capacity_add_up_the_work_of_both(cost: CostModel) -> None:
    both: Both = (Shape(16, 1024), Shape(16, 24))
    prompt_s = 1 / bounds.prefill_tokens_per_s(cost, CONFIG, both[0], LOAD.attended)
    answer_s = bounds.beside_prompts_s(cost, CONFIG, LOAD, both, TARGET)
    assert 0 < answer_s < 1 / bounds.decode_tokens_per_s(cost, CONFIG, 6000.0, both[1], TARGET), "no reads of weights"
    each_s = 6000 * prompt_s + 300 * answer_s
    assert bounds.both_per_s(cost, CONFIG, LOAD, both, TARGET) == pytest.approx(1 / each_s)
    one = Candidate(both[0], 0, both[1], 3)
    assert capacity_per_s(cost, CONFIG, LOAD, TARGET, one) == pytest.approx(3 / each_s)
    crowd = dataclasses.replace(LOAD, duration_s=1.0)
    work_s = 720 * (6000 * prompt_s + 299 * answer_s)
    expected = 0.8 * work_s / (1.0 + 2.0 + 299 * 0.05)
    assert expected > 1
    assert bounds.least_both(cost, CONFIG, crowd, both, TARGET) == int(np.ceil(expected))
    found = begin(cost)
    rows = [row for row in shape_bounds(cost, CONFIG, LOAD, found, TARGET) if row.pool == "aggregated"]
    assert [(row.npus, row.chunk, row.limit) for row in rows] == [
        (npus, tokens, 24) for npus in (16, 32) for tokens in (16_384, 1024)
    ]
    assert rows[1].tokens_per_s == pytest.approx(6300 / each_s)


# ---- simulated -------------------------------------------------------------------------------------------------------


def test_a_candidate_as_a_configuration() -> None:
    trace = TraceChoice(Path("none"))
    one = Candidate(Shape(16, 1024), 0, Shape(16, 24, 4, 0, 32), 3)
    asked = dataclasses.replace(CONFIG, engine=dataclasses.replace(CONFIG.engine, handoff_lease_s=77.0))
    settings = configured(PlanSetting(asked, trace, trace, TARGET), one)
    assert split_of(settings) == one
    pool = settings.aggregated
    assert (pool.replicas, pool.npus_per_instance, pool.max_step_tokens, pool.max_sequences) == (3, 16, 16_384, 768)
    assert pool.max_waiting == CONFIG.prefill.max_waiting
    assert settings.kvcache.replicas == 6
    assert settings.engine.handoff_lease_s != 77.0
    check_consistency(settings, "plan", own_nodes=False)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=6.0, seconds=10.0)


def question(trace: Path, **changes: object) -> PlanQuestion:
    wanted = SearchLimits(
        (8,), (16,), 48, (1024,), (24,), modes=("disaggregated", "aggregated"), aggregated_sizes=(16,)
    )
    usual = PlanQuestion(CONFIG, TraceChoice(trace), PlanTarget(1.0, 0.06, 0.9), wanted, "least")
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


PRICES = read_prices(CONFIG_FILE.parent.parent / "examples" / "prices.toml")


@pytest.fixture(scope="module")
def together(trace: Path) -> CapacityPlan:
    """With enough time, one instance that does both replaces two that do not."""
    return planned(question(trace, losses=True, prices=PRICES))


def test_one_instance_for_both_needs_fewer_npus_where_tpot_has_room(together: CapacityPlan) -> None:
    best = together.best
    assert best is not None
    assert best.candidate.label == "1 x 16 aggregated"
    assert "16 NPUs are the fewest that keep" in words.headline(together)
    assert "(prefill + decode)" not in words.headline(together)
    assert "nobody has published one" in together.accuracy
    note = words.plan_table(together).note
    assert "4 x 16 aggregated: instances that prefill and decode" in note
    assert note in markdown(together)
    assert "aggregated, 16 NPUs" in markdown(together)


def test_two_pools_win_where_chunks_would_hold_up_answers(trace: Path, together: CapacityPlan) -> None:
    """One prefill and one decode instance meet a TPOT for which two aggregated ones, which cost more, are needed."""
    assert together.best is not None
    strict = PlanTarget(1.0, 0.6 * together.best.verdict.tpot_p99_s, 0.9)
    found = planned(question(trace, target=strict))
    assert found.best is not None
    assert found.best.candidate.label == "1 x 8 + 1 x 16"
    assert "1 x 8 + 1 x 16 (prefill + decode)" in words.headline(found)
    (few,) = [one for one in found.options if one.candidate.label == "1 x 16 aggregated"]
    assert not few.holds
    assert few.why.startswith("TPOT misses")


def test_the_plan_is_a_file_that_simulates_as_the_plan_did(together: CapacityPlan, trace: Path, tmp_path: Path) -> None:
    file = write_all(together, tmp_path)[-1]
    written = load_config(file)
    assert together.best is not None
    assert written.serving.mode == "aggregated"
    assert split_of(written) == together.best.candidate
    assert (written.slo.ttft_s, written.slo.tpot_s, written.slo.attainment) == (1.0, 0.06, 0.9)
    told = " ".join(idle_lines(read_config(file), "simulate"))
    assert not any(name in told for name in ("[prefill]", "[decode]", "handoff", "empty_role"))
    figures = summarize(simulate(written, TraceChoice(trace).open()), Slo(1.0, 0.06))
    assert figures.ttft_s.p99 == together.best.verdict.ttft_p99_s
    assert figures.goodput is not None
    assert figures.goodput.attainment == together.best.verdict.attainment
    check_consistency(written, "serve", own_nodes=False)


def test_losses_are_of_the_one_pool(together: CapacityPlan) -> None:
    assert [one.what.split(":")[0] for one in together.losses] == [
        "nothing", "an NPU", "a node", "an aggregated instance",
    ]  # fmt: skip
    assert together.losses[0].holds
    assert all(one.hit > 0 and not one.holds for one in together.losses[1:])
    assert together.best is not None
    texts = [loss_text(loss, together.best.candidate) for loss in LOSSES_TOGETHER]
    assert "the aggregated instance starts again on 16 spare NPUs" in texts[1]


def test_a_token_costs_the_same_in_and_out(together: CapacityPlan) -> None:
    best = together.best
    assert best is not None
    assert best.cost is not None
    verdict = best.verdict
    whole = best.cost.per_hour * verdict.load_s / 3600
    assert best.cost.in_per_million == best.cost.out_per_million
    tokens = verdict.prompt_tokens + verdict.output_tokens
    assert best.cost.in_per_million * tokens / 1e6 == pytest.approx(whole)
    assert "in and out alike" in words.cost_table(together).note
    apart = Candidate(Shape(8, 1024), 1, Shape(32, 24), 1)
    none = PlanVerdict(1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, "", prompt_tokens=10, output_tokens=10, load_s=1.0)
    assert plan_cost(apart, none, PRICES).in_per_million != plan_cost(apart, none, PRICES).out_per_million


def test_goodput_takes_aggregated_plans_too(trace: Path) -> None:
    found = planned(question(trace, question="goodput"))
    assert found.best is not None
    kinds = {one.candidate.one_pool for one in [found.best, *found.options]}
    assert kinds == {True, False}
    assert "gives the highest goodput" in words.headline(found)


# ---- as typed --------------------------------------------------------------------------------------------------------


def asked(*typed: str) -> PlanQuestion:
    return command.order_of(
        command_parser("plan").parse_args(["plan", "--config", str(CONFIG_FILE), "--trace", "t", *typed])
    )


def test_flags_and_nonsense(trace: Path) -> None:
    assert asked().wanted.modes == ("disaggregated",)
    assert asked().wanted.aggregated_sizes == ()
    assert asked(*EITHER).wanted.modes == ("disaggregated", "aggregated")
    assert asked(*EITHER).wanted.aggregated_sizes == (16, 32, 64, 128)
    alone = asked("--modes", "aggregated", "--sizes-aggregated", "8,16").wanted
    assert (alone.modes, alone.aggregated_sizes) == (("aggregated",), (8, 16))

    with pytest.raises(ConfigError, match="--sizes-aggregated needs --modes"):
        asked("--sizes-aggregated", "16")
    for nonsense in ("both", "", "aggregated,together"):
        with pytest.raises(SystemExit):
            asked("--modes", nonsense)
    for flags in (("--modes", "aggregated"), ("--sizes-aggregated", "16")):
        with pytest.raises(ConfigError, match=f"{flags[0]} is for a search"):
            command.comparison_of(
                command_parser("plan").parse_args(["plan", "--compare", "a.toml", "b.toml", "--trace", "t", *flags])
            )
    wanted = dataclasses.replace(question(trace).wanted, aggregated_sizes=())
    with pytest.raises(ConfigError, match="each pool needs at least one size"):
        planned(question(trace, wanted=wanted))
    mode = dataclasses.replace(CONFIG.serving, mode="aggregated")
    with pytest.raises(ConfigError, match="from a file that has them; --modes aggregated offers"):
        planned(question(trace, config=dataclasses.replace(CONFIG, serving=mode)))

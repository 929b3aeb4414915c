"""Attention and experts on different dies: xDeepServe's iteration, its bottleneck, and the contents of each die."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, load_device, mtp_tokens_per_step
from hardware.cost.disaggregated import ApartDecodeStep, DisaggregatedStep, SessionTurns, session_timeline
from hardware.cost.exchange import hop_s
from hardware.cost.parallelism import Parallelism, Trampolines, domains_of
from hardware.cost.published_other import XDEEPSERVE_ROWS, experts_apart
from hardware.cost.trust import decode_trust, expected
from hardware.errors import SpecError
from tests.hardware.cost.known import known

ASCEND = load_device("ascend-910c")
LOAD = DecodeLoad(96, 96 * 3072, None, 768, 1, True)
splits = st.sampled_from([(768, 288, 3), (320, 128, 3), (320, 96, 1), (320, 32, 3), (64, 16, 3), (64, 24, 2)])


@lru_cache
def apart(expert_dies: int, domains: int = 3, name: str = "deepseek-r1") -> CostModel:
    return CostModel(ASCEND, known(name), decode=Parallelism(expert_dies=expert_dies, domains=domains))


def iteration(model: CostModel, batch: float, context: float, dies: int, drafts: int = 1) -> DisaggregatedStep:
    step = model.decode
    assert isinstance(step, ApartDecodeStep)
    return step.iteration(model.even_load(batch, context, dies=dies, drafts=drafts))


def measured(model: CostModel, domains: int = 3) -> DisaggregatedStep:
    """A model with the published stage times."""
    step = ApartDecodeStep(model.device, model.shape, Parallelism(expert_dies=288, domains=domains))
    return step.stages(LOAD, 2, 0.7e-3, 0.12e-3)


def test_the_published_formula_and_who_sets_its_pace(model: CostModel) -> None:
    step = measured(model)
    assert step.total_s == pytest.approx(92.9e-3, rel=0.002)
    assert step.tpot_s(mtp_tokens_per_step(1, 0.9)) == pytest.approx(49e-3, rel=0.005)
    assert measured(model).bound == "attention"
    four = measured(model, domains=4)
    assert four.bound == "experts"
    assert four.total_s > measured(model).total_s


@pytest.mark.parametrize("domains", [1, 2, 3, 5])
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("imbalance", [None, 1.9])
def test_the_closed_form_is_what_sessions_take(domains: int, halves: int, imbalance: float | None) -> None:
    step = apart(288, domains).decode
    assert isinstance(step, ApartDecodeStep)
    stages = step.stages(replace(LOAD, imbalance=imbalance), halves)
    turns = SessionTurns(domains, halves, step.shape.layers)
    events = session_timeline(stages.exchange, stages.attention_s, stages.experts_s, turns)
    assert events == pytest.approx(halves * step.shape.layers * stages.pace_s + stages.last_s, rel=0.015)


def test_exchanges_follow_dies_words_and_bytes() -> None:
    """Published stage times are of the mean die; none of them is an input."""
    published = {"send_s": 172e-6, "experts_s": 120e-6, "return_s": 193e-6}
    step = apart(288).decode
    assert isinstance(step, ApartDecodeStep)
    mean = step.stages(replace(LOAD, imbalance=1.0), 2)
    for name, seconds in published.items():
        assert getattr(mean, name) == pytest.approx(seconds, rel=0.02), name
    hot = step.stages(replace(LOAD, imbalance=2.0), 2)
    assert all(getattr(hot, name) > 1.3 * getattr(mean, name) for name in published), "the busiest die sets the pace"
    assert (hot.bound, hot.exchange.forward > mean.exchange.forward) == ("experts", True)
    assert hop_s(ASCEND, 0.0) == pytest.approx(2 * 2.1e-6), "two words, one after the other"
    few = iteration(apart(96, 1), 120, 3072, 320)
    assert few.exchange.forward == few.exchange.gather == 0.0, "each expert die is a trampoline"


def test_direct_addressing_has_no_hop_and_as_many_peers_as_expert_dies() -> None:
    ways: tuple[Trampolines, ...] = ("ranks", "direct")
    hops, direct = (
        ApartDecodeStep(ASCEND, known("deepseek-r1"), Parallelism(expert_dies=288, trampolines=way)).stages(LOAD, 2)
        for way in ways
    )
    assert direct.exchange.forward == direct.exchange.gather == 0.0 < hops.exchange.forward
    assert direct.experts_s == hops.experts_s
    assert direct.send_s < hops.send_s, "Table 7 does not rise from 128 dies on"
    assert direct.exchange.first < hops.exchange.first, "no rows of other dies"


def test_the_model_s_own_stages_are_what_the_published_row_is_judged_with(model: CostModel) -> None:
    step = experts_apart(model).stages(LOAD, 2)
    assert step.attention_s == pytest.approx(0.7e-3, rel=0.18)
    assert step.experts_s == pytest.approx(0.12e-3, rel=0.5)
    longer = experts_apart(model).stages(DecodeLoad(96, 96 * 6144, None, 768, 1, True), 2)
    assert longer.attention_s > step.attention_s
    assert longer.experts_s == step.experts_s, "experts do not see the context"
    # A batch of 120 over all 384 NPUs is one of 96 on each of 480 attention dies.
    row = next(row for row in XDEEPSERVE_ROWS if row.name == "split 480 : 288, 96 per die")
    asked = apart(288)
    load = asked.even_load(120, 3072, dies=768, microbatch=True)
    assert load == LOAD
    told = asked.decode_step(load)
    assert told.total_s * 1e3 == row.predict(model)
    assert asked.decode_step_s(load) == told.total_s == iteration(asked, 120, 3072, 768).total_s


def test_with_few_expert_dies_the_experts_set_the_pace_and_few_sequences_are_not_halved() -> None:
    many, few = (iteration(apart(expert_dies, 2), 120, 3072, 320) for expert_dies in (96, 32))
    assert (many.bound, few.bound) == ("attention", "experts")
    assert few.total_s > many.total_s
    assert few.pace_s == few.turn_s == pytest.approx(2 * max(few.send_s, few.experts_s, few.return_s))
    step = iteration(apart(288), 2, 4096, 768)
    assert (step.halves, step.last_s) == (1, 0.0)
    assert step.pace_s >= step.attention_s + step.experts_s + step.return_s
    assert iteration(apart(288), 96, 4096, 768).halves == 2


@given(splits, st.integers(1, 300), st.sampled_from([1, 500, 4096, 30_000]), st.sampled_from([0, 1]))
def test_more_sequences_take_longer(split: tuple[int, int, int], batch: int, context: int, drafts: int) -> None:
    dies, expert_dies, domains = split
    model = apart(expert_dies, domains)
    times = [model.tpot_s(size, context, dies=dies, drafts=drafts) for size in (batch, batch + 1)]
    assert 0 < times[0] <= times[1] * (1 + 1e-12)
    assert model.tpot_s(batch, context + 1000, dies=dies, drafts=drafts) >= times[0]


@given(splits, st.integers(1, 150), st.integers(1, 8000), st.floats(0.3, 1.0))
def test_the_table_follows_the_model(split: tuple[int, int, int], requests: int, context: int, share: float) -> None:
    dies, expert_dies, domains = split
    model = apart(expert_dies, domains)
    load = DecodeLoad(requests, requests * context, requests * share, dies)
    found = model.decode_table(dies=dies).seconds(load.requests, load.context_tokens, load.mean_requests)
    assert found == pytest.approx(model.decode_step_s(load), rel=0.01)


@given(splits, st.sampled_from([1, 7, 96, 200]))
def test_parts_add_up(split: tuple[int, int, int], batch: int) -> None:
    dies, expert_dies, domains = split
    model = apart(expert_dies, domains)
    step = model.decode_step(model.even_load(batch, 4096, dies=dies))
    assert sum(part.time_s for part in step.parts) == pytest.approx(step.total_s)
    assert all(part.time_s >= 0 for part in step.parts)


def test_what_each_die_holds() -> None:
    together, model = CostModel(ASCEND), apart(288)
    plan, whole = model.hbm_plan("decode", 768), together.hbm_plan("decode", 768)
    experts = model.shape.moe_layers * model.shape.expert_weights
    assert plan.expert_die is not None
    assert whole.expert_die is None
    assert plan.expert_die.weights == 2 * experts, "two copies of 1.1 experts, or the shared one"
    assert plan.weights < whole.weights
    assert plan.kv_tokens > whole.kv_tokens
    assert plan.instance_kv_tokens == 480 * plan.kv_tokens
    few = apart(32).hbm_plan("decode", 320)
    assert few.expert_die is not None
    assert few.expert_die.weights == 10 * experts
    assert few.weights == pytest.approx(plan.weights, rel=0.02), "an attention die holds no routed experts"
    per_die = plan.kv_tokens // 4096
    assert model.batch_that_fits(4096, dies=768) == per_die * 480 // 384
    batch = apart(288).max_batch(0.05, 4096, dies=768)
    assert 0 < batch < apart(288).batch_that_fits(4096, dies=768)
    assert apart(288).tpot_s(batch, 4096, dies=768) <= 0.05 < apart(288).tpot_s(batch + 1, 4096, dies=768)


@pytest.mark.parametrize(
    ("name", "dies", "division", "message"),
    [
        ("deepseek-r1", 768, Parallelism(expert_dies=768), "leaves no die of 768 for attention"),
        ("deepseek-r1", 768, Parallelism(expert_dies=800), "leaves no die of 768 for attention"),
        ("deepseek-r1", 768, Parallelism(expert_dies=288, domains=7), "domains is 7, which does not divide 480"),
        ("deepseek-r1", 64, Parallelism(expert_dies=4, domains=1), "experts of deepseek-r1 do not fit on 4 dies"),
        ("llama-3.1-8b", 8, Parallelism(expert_dies=2), "llama-3.1-8b is dense: it has no experts"),
    ],
)
def test_impossible_layouts(name: str, dies: int, division: Parallelism, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        CostModel(ASCEND, known(name), decode=division).hbm_plan("decode", dies)


def test_what_is_not_priced_is_refused() -> None:
    for wrong in ((1, 1, -1, 3), (1, 1, 32, 0), (2, 1, 32, 3), (1, 2, 32, 3)):
        attention_tp, head_tp, expert_dies, domains = wrong
        with pytest.raises(SpecError, match=r"cannot be|only 1 is priced"):
            Parallelism(attention_tp, head_tp, None, expert_dies, domains)
    with pytest.raises(SpecError, match="expert_tp is 2, but with expert_dies only 1 is priced"):
        Parallelism(expert_dies=32, expert_tp=2)
    with pytest.raises(SpecError, match="no prefill with experts"):
        CostModel(ASCEND, prefill=Parallelism(expert_dies=32))
    with pytest.raises(SpecError, match="no aggregated with experts"):
        apart(32).hbm_plan("aggregated", 320)


def test_peers_send_rows_once_and_serve_one_half_after_the_other() -> None:
    """One expert die for each attention die: rows of 14 KB once, then dispatch among the expert dies."""
    apart, load = (
        Parallelism(expert_dies=64, domains=1, trampolines="peers"),
        DecodeLoad(28, 28 * 4096, None, 256, 0, True),
    )
    step = ApartDecodeStep(ASCEND, known("deepseek-r1"), apart).stages(load, 2)
    floor, rate = ASCEND.calibration.exchange_floor_s, ASCEND.calibration.bulk_exchange_bytes_per_s
    assert step.exchange.first == pytest.approx(2 * (floor + 14 * 14_336 / rate)), "sends, and receives"
    assert step.exchange.last == pytest.approx(floor + 42 * 14_336 / rate), "rows of three attention dies"
    assert step.turn_s == pytest.approx(step.send_s + step.experts_s + step.return_s), "one stream"
    for way in (Parallelism(expert_dies=64, domains=1), Parallelism(expert_dies=64, domains=1, trampolines="direct")):
        other = ApartDecodeStep(ASCEND, known("deepseek-r1"), way).stages(load, 2)
        assert other.exchange.first > step.exchange.first, "a row for each expert"
    with pytest.raises(SpecError, match="needs an attention die for each of 200 expert dies"):
        Parallelism(expert_dies=200, domains=1, trampolines="peers").check_dies(ASCEND, 256)


def test_one_deployment_is_no_error_bound() -> None:
    trust = decode_trust(apart(288), 120, 3072, dies=768)
    assert "neighbours" in trust.text
    assert "one deployment only, xDeepServe's 480 + 288 dies" in trust.text
    assert "one deployment only" in expected(apart(288))
    assert [domains_of(dies, 96, 3) for dies in (768, 320, 384, 97)] == [3, 2, 3, 1]

"""Division of an instance's work over its dies: degrees of attention and LM head, layouts of prefill."""

from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.decode_step import HalfBatch
from hardware.cost.engine_profile import load_engine
from hardware.cost.memory_plan import Role
from hardware.cost.parallelism import Parallelism
from hardware.cost.trust import decode_trust, expected, prefill_trust
from hardware.errors import SpecError
from tests.hardware.cost.known import known

NAMES = ("deepseek-r1", "deepseek-v3.2", "qwen3-30b-a3b", "llama-3.1-8b", "gpt-oss-20b")
DEGREES = (1, 2, 4, 8)
devices, names = st.sampled_from(["ascend-910c", "h800"]), st.sampled_from(NAMES)


@lru_cache
def divided(name: str, tp: int = 1, head: int = 1, device: str = "ascend-910c") -> CostModel:
    both = Parallelism(tp, head)
    return CostModel(load_device(device), known(name), decode=both, prefill=both)


@given(devices, names, st.integers(1, 64), st.booleans())
def test_degrees_of_one_change_nothing_to_the_last_bit(device: str, name: str, batch: int, apart: bool) -> None:
    plain, one = CostModel(load_device(device), known(name)), divided(name, device=device)
    load = DecodeLoad(batch, batch * 4096.0, batch / 2 if apart else None, 64, drafts=0)
    assert one.decode_step(load) == plain.decode_step(load)
    prompts = PrefillLoad(batch * 1000.0, batch * 1e6, 32)
    assert one.prefill_step(prompts) == plain.prefill_step(prompts)
    roles: tuple[Role, ...] = ("decode", "prefill", "aggregated")
    for role in roles:
        assert one.hbm_plan(role, 64) == plain.hbm_plan(role, 64)


@given(names, st.sampled_from([32, 64]))
def test_a_die_holds_less_the_more_dies_share(name: str, dies: int) -> None:
    held = [divided(name, tp).hbm_plan("decode", dies).weights for tp in DEGREES]
    assert all(more > less for more, less in pairwise(held))
    heads = [divided(name, 1, head).hbm_plan("decode", dies).weights for head in DEGREES]
    tied = known(name).tied_head
    assert heads[0] - heads[-1] == pytest.approx(0 if tied else 7 / 8 * known(name).head_weights, abs=1)


def test_what_a_group_holds_of_the_cache() -> None:
    """Latents are the same for all heads, so each die of a group has them; KV heads are divided."""
    for name, shares in (("deepseek-r1", (1, 1, 1, 1)), ("qwen3-30b-a3b", (1, 2, 4, 4))):
        for tp, parts in zip(DEGREES, shares, strict=True):
            model = divided(name, tp)
            plan = model.hbm_plan("decode", 64)
            assert plan.kv_tokens == plan.kv * parts // model.shape.kv_token_bytes()
            assert plan.instance_kv_tokens == plan.kv_tokens * 64 // tp
            assert model.batch_that_fits(4096, dies=64) == plan.kv_tokens // 4096 * 2 // tp
    with pytest.raises(SpecError, match="give a dense model a larger attention_tp"):
        divided("llama-3.1-70b").hbm_plan("decode", 8)
    assert divided("llama-3.1-70b", 8).hbm_plan("decode", 8).weights == pytest.approx(10.7e9, rel=0.01)
    assert divided("llama-3.1-70b", 8).hbm_plan("prefill", 8).instance_kv_tokens > 1_000_000
    assert divided("deepseek-r1").hbm_plan("decode", 16).kv_tokens > 20_000
    assert divided("deepseek-r1", 2).hbm_plan("decode", 16).instance_kv_tokens > 900_000
    for name in ("qwen3-30b-a3b", "gpt-oss-20b"):
        assert divided(name).hbm_plan("decode", 8).instance_kv_tokens > 1_000_000


def attention_s(model: CostModel, batch: float, context: float) -> float:
    """Attention of one layer, without the group's exchange."""
    half = model.decode.half_batch(model.even_load(batch, context, dies=64, drafts=0), 1)
    return model.decode.attention_s(half, 1.0) - half.collective


@given(names)
def test_reading_weights_gets_faster_with_each_doubling(name: str) -> None:
    times = [attention_s(divided(name, tp), 1 / 32, 16) for tp in DEGREES]
    assert all(before > after for before, after in pairwise(times))


def test_what_gets_faster_where_dies_share_a_sequence() -> None:
    """A group has the sequences of all its dies, and each die reads their latents whole."""
    latent = [divided("deepseek-r1", tp).decode.half_batch(DecodeLoad(8, 8e5, None, 64, 0), 1) for tp in DEGREES]
    assert len({half.core_w for half in latent}) == 1
    batch = [attention_s(divided("deepseek-r1", tp), 16, 65_536) for tp in (2, 4, 8)]
    assert batch[0] < batch[1] < batch[2]
    grouped = [divided("qwen3-30b-a3b", tp).decode.half_batch(DecodeLoad(8, 8e5, None, 64, 0), 1) for tp in DEGREES]
    assert [half.core_w / grouped[0].core_w for half in grouped] == [1, 0.5, 0.25, 0.25]
    # Weights bind the one, replicated latents and down-projections the other.
    small = [divided("deepseek-r1", tp).tpot_s(2, 4096, dies=64) for tp in (1, 4)]
    large = [divided("deepseek-r1", tp).tpot_s(96, 4096, dies=64) for tp in (1, 8)]
    assert small[1] < small[0]
    assert large[1] > large[0]
    for tp in DEGREES:
        model = divided("deepseek-r1", tp)
        half = model.decode.half_batch(model.even_load(32, 4096, dies=64), 1)
        plain = divided("deepseek-r1").decode.half_batch(divided("deepseek-r1").even_load(32, 4096, dies=64), 1)
        assert (half.expert_c, half.expert_w, half.exchange) == (plain.expert_c, plain.expert_w, plain.exchange)


@given(names, st.sampled_from(DEGREES), st.sampled_from([1, 4]), st.integers(1, 64), st.integers(16, 32_768))
def test_parts_add_up_and_tables_agree(name: str, tp: int, head: int, batch: int, context: int) -> None:
    model = divided(name, tp, head)
    load = DecodeLoad(batch, float(batch * context), None, 64, drafts=0, microbatch=False)
    step = model.decode_step(load)
    assert sum(part.time_s for part in step.parts) == pytest.approx(step.total_s)
    table = model.decode_table(dies=64, drafts=0, microbatch=False)
    assert table.seconds(batch, batch * context) == pytest.approx(step.total_s, rel=0.01)
    prefill = model.prefill_step(PrefillLoad(8192, 8192 * context / 2, 16, microbatch=False))
    assert sum(part.time_s for part in prefill.parts) == pytest.approx(prefill.total_s)


def experts_of(tp: int, dies: int, batch: float) -> HalfBatch:
    model = CostModel(load_device("ascend-910c"), decode=Parallelism(expert_tp=tp))
    return model.decode.half_batch(model.even_load(batch, 4096, dies=dies, drafts=0), 1)


def test_shared_experts_and_a_split_head_read_less_and_exchange_more() -> None:
    """A lone token activates eight experts: some die reads one whole, or each die of a group its part of one."""
    whole, part = experts_of(1, 64, 1 / 32), experts_of(8, 64, 1 / 32)
    assert part.expert_w < 0.5 * whole.expert_w
    many = [experts_of(tp, 64, 64) for tp in (1, 2, 8)]
    assert many[0].exchange < many[1].exchange < many[2].exchange
    assert many[2].expert_c < many[0].expert_c, "the busiest of fewer, larger parts is less above the mean"
    one, four = divided("llama-3.1-8b"), divided("llama-3.1-8b", 1, 4)
    assert four.decode.terms.head_w == one.decode.terms.head_w / 4
    assert four.decode.head_s(1) < one.decode.head_s(1), "few rows: reading binds"
    assert four.decode.head_s(4096) > one.decode.head_s(4096), "many rows: their products stay"


@given(st.sampled_from([2, 4, 8]), st.sampled_from([16, 32, 64]), st.integers(1, 512))
def test_experts_in_parts_are_as_much_work_and_as_many_bytes(tp: int, dies: int, tokens: int) -> None:
    ascend = load_device("ascend-910c")
    whole, divided = (CostModel(ascend, decode=Parallelism(expert_tp=one)) for one in (1, tp))
    group, parts = whole.decode.group(dies), divided.decode.group(dies)
    assert parts.routed_dies * tp == group.routed_dies
    mean = parts.routed_visits * tokens * tp * divided.decode.terms.expert_t
    assert mean == pytest.approx(group.routed_visits * tokens * whole.decode.terms.expert_t)
    assert parts.slots / tp <= group.slots + 1
    held = [model.hbm_plan("decode", 64).weights for model in (whole, divided)]
    assert held[1] == pytest.approx(held[0], rel=0.2)


def layouts(name: str, **load: float) -> dict[str, float]:
    prompts = PrefillLoad(load["tokens"], load["tokens"] * load["seen"], 16)
    asked: tuple[Parallelism, ...] = (
        Parallelism(prefill_attention="sp-tp-sp"),
        Parallelism(prefill_attention="data-parallel"),
        Parallelism(prefill_attention="context-parallel"),
        Parallelism(4),
    )
    ascend = load_device("ascend-910c")
    models = {str(one.prefill_attention): CostModel(ascend, known(name), prefill=one) for one in asked}
    return {layout: float(model.prefill_step_s(prompts)) for layout, model in models.items()}


def test_layouts_of_prefill_differ_by_what_they_exchange_and_hold() -> None:
    grouped = layouts("qwen3-30b-a3b", tokens=65_536, seen=32_768)
    assert grouped["data-parallel"] < grouped["context-parallel"] < grouped["sp-tp-sp"], "few KV heads, small rows"
    latent = layouts("deepseek-r1", tokens=65_536, seen=32_768)
    assert latent["context-parallel"] > latent["sp-tp-sp"], "every die expands all latents"
    assert latent["None"] > latent["data-parallel"]
    named = CostModel(load_device("ascend-910c"), prefill=Parallelism(prefill_attention="sp-tp-sp"))
    load = PrefillLoad(65_536, 65_536 * 2048, 32)
    assert named.prefill_step_s(load) == divided("deepseek-r1").prefill_step_s(load)
    assert named.hbm_plan("prefill", 32) == divided("deepseek-r1").hbm_plan("prefill", 32)
    whole, parts = (
        CostModel(load_device("ascend-910c"), prefill=Parallelism(expert_tp=tp)).prefill.layer(
            PrefillLoad(65_536, 65_536 * 2048, 32), halves=1
        )
        for tp in (1, 4)
    )
    assert parts.exchange == pytest.approx(4 * whole.exchange)
    assert parts.weights < whole.weights
    assert parts.core == whole.core
    model = {
        layout: CostModel(load_device("ascend-910c"), known("qwen3-30b-a3b"), prefill=Parallelism(1, 1, layout))
        for layout in ("sp-tp-sp", "data-parallel", "context-parallel")
    }
    plans = {layout: one.hbm_plan("prefill", 16) for layout, one in model.items()}
    assert plans["data-parallel"].instance_kv_tokens == 16 * plans["data-parallel"].kv_tokens
    assert plans["context-parallel"].instance_kv_tokens == plans["context-parallel"].kv_tokens


def test_prompts_of_its_own_fill_one_die_but_a_devices_layout_is_taken_to_be_even() -> None:
    few, even = PrefillLoad(16_384, 16_384 * 2048, 32, largest=16_384), PrefillLoad(16_384, 16_384 * 2048, 32)
    for device, asked, counts in (
        ("h800", Parallelism(), False),
        ("h800", Parallelism(1, 2), False),
        ("h800", Parallelism(prefill_attention="data-parallel"), True),
        ("ascend-910c", Parallelism(4), True),
        ("ascend-910c", Parallelism(), False),
    ):
        model = CostModel(load_device(device), prefill=asked)
        assert (model.prefill_step_s(few) > model.prefill_step_s(even)) == counts


@pytest.mark.parametrize(
    ("name", "device", "asked", "message"),
    [
        ("deepseek-r1", "ascend-910c", Parallelism(3), "attention_tp is 3, which does not divide the 128 heads of"),
        ("qwen3-30b-a3b", "ascend-910c", Parallelism(32), None),
        ("llama-3.1-8b", "ascend-910c", Parallelism(64), "64, which does not divide the 32 heads and 8 KV heads of"),
        ("deepseek-r1", "h800", Parallelism(16), "attention_tp is 16, but the scale-up fabric of h800 joins 8"),
        ("deepseek-r1", "ascend-910c", Parallelism(expert_tp=3), "does not divide the 2048 columns of an expert of"),
        ("llama-3.1-8b", "ascend-910c", Parallelism(expert_tp=2), "expert_tp is 2, but llama-3.1-8b is dense"),
        ("deepseek-r1", "h800", Parallelism(1, 16), "head_tp is 16, but the scale-up fabric of h800 joins 8"),
    ],
)
def test_degrees_that_a_model_or_device_does_not_allow(
    name: str, device: str, asked: Parallelism, message: str | None
) -> None:
    if message is None:
        CostModel(load_device(device), known(name), decode=asked)
        return
    with pytest.raises(SpecError, match=message):
        CostModel(load_device(device), known(name), decode=asked)
    with pytest.raises(SpecError, match=message):
        CostModel(load_device(device), known(name), prefill=asked)


def test_degrees_that_no_instance_has() -> None:
    for attention_tp, head_tp in ((0, 1), (1, -1)):
        with pytest.raises(SpecError, match="must be a whole number of dies from 1 up"):
            Parallelism(attention_tp, head_tp)
    with pytest.raises(SpecError, match="prefill_attention context-parallel is over all dies: it has no attention_tp"):
        Parallelism(4, 1, "context-parallel")
    shared = Parallelism(expert_tp=4)
    by_experts = CostModel(load_device("ascend-910c"), decode=shared, prefill=shared)
    for one in (divided("deepseek-r1", 4), divided("deepseek-r1", 1, 4), by_experts):
        asking = (
            lambda model: model.hbm_plan("decode", 30),
            lambda model: model.even_load(1, 4096, dies=30),
            lambda model: model.decode_table(dies=30),
            lambda model: model.prefill_table(dies=30),
        )
        for ask in asking:
            with pytest.raises(SpecError, match=r"is 4, which does not divide an instance of 30 dies"):
                ask(one)
    across = CostModel(load_device("h800"), prefill=Parallelism(prefill_attention="sp-tp-sp"))
    with pytest.raises(SpecError, match="is over 32 dies, but the scale-up fabric of h800 joins 8"):
        across.hbm_plan("prefill", 32)


def test_nothing_divided_counts_as_checked() -> None:
    apart, other = divided("deepseek-r1", 4, 2), divided("qwen3-30b-a3b", 4)
    for trust in (decode_trust(apart, 96, 4096), prefill_trust(apart, 8192, 4096)):
        assert trust.text.startswith("not checked: no row has attention TP 4, LM-head TP 2; expect within ")
    assert "no row has attention TP 4" in decode_trust(other, 96, 4096).text
    assert "no row has attention TP 4" in expected(other)
    assert expected(apart).count("not checked: no row has attention TP 4") == 2
    one_side = CostModel(load_device("ascend-910c"), prefill=Parallelism(prefill_attention="context-parallel"))
    assert expected(one_side).startswith("decode: within")
    assert "prefill: not checked: no row has context-parallel attention" in expected(one_side)


def test_an_engine_takes_its_own_time_for_the_tokens_of_a_die() -> None:
    engine = load_engine("vllm-ascend")
    model = CostModel(load_device("ascend-910c"), engine=engine, decode=Parallelism(4))
    load = model.even_load(16, 4096, dies=64)
    assert engine.decode is not None
    assert model.decode_step_s(load) == engine.decode.seconds(model.decode.seconds(load), 8 * 2)
    assert model.decode_step(load).total_s == model.decode_step_s(load)
    assert model.decode_table(dies=64).seconds(32, 32 * 4096, None) == pytest.approx(model.decode_step_s(load))

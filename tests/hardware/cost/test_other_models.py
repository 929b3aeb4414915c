"""Dense models and grouped attention: parts specific to DeepSeek-R1 cost nothing, the rest has the same price."""

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import DEEPSEEK_R1, CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.attention import GroupedAttentionSizes
from hardware.cost.trust import model_trust
from hardware.errors import SpecError
from tests.hardware.cost.known import KNOWN, known

DEVICES = {name: load_device(name) for name in ("ascend-910c", "h800")}
ASCEND = DEVICES["ascend-910c"]
FITTING = [name for name in KNOWN if name != "llama-3.1-70b"]
SLACK = 1 + 1e-9

models = st.builds(
    lambda device, name: CostModel(DEVICES[device], known(name)),
    st.sampled_from(sorted(DEVICES)),
    st.sampled_from(sorted(KNOWN)),
)
contexts = st.integers(1, 2048)
batches = st.integers(1, 96)


@given(models, batches, contexts, st.sampled_from([2, 32, 320]), st.sampled_from([True, False, None]))
def test_decode_parts_add_up(model: CostModel, requests: int, context: int, dies: int, halves: bool | None) -> None:
    drafts = min(1, model.shape.mtp_layers)
    load = DecodeLoad(requests, requests * context, None, dies, drafts, halves)
    cost = model.decode_step(load)
    assert 0 < cost.total_s == model.decode_step_s(load) < math.inf
    assert all(part.runs > 0 and part.time_s >= 0 for part in cost.parts)
    assert cost.has_experts == (model.shape.experts > 0)
    if not cost.microbatch:
        assert cost.total_s == pytest.approx(sum(part.time_s for part in cost.parts))
    if not cost.has_experts:
        assert not cost.microbatch
        assert not any(part.bound == "network" or "expert" in part.name for part in cost.parts)
        assert cost.layer_s == pytest.approx(sum(cost.streams_s))


@given(models, st.integers(1, 200_000), contexts, st.sampled_from([2, 16, 32]), st.booleans())
def test_prefill_parts_cover_the_step(model: CostModel, tokens: int, seen: int, dies: int, halves: bool) -> None:
    load = PrefillLoad(tokens, tokens * seen, dies, None, halves)
    cost = model.prefill_step(load)
    assert 0 < cost.total_s == model.prefill_step_s(load) < math.inf
    assert cost.total_s <= sum(part.time_s for part in cost.parts) * SLACK
    names = {part.name for part in cost.parts}
    assert ("dispatch and combine" in names) == ("expert products" in names) == (model.shape.moe_layers > 0)
    grouped = isinstance(model.shape.attention, GroupedAttentionSizes)
    assert ("all-gather of latents" in names) != ("all-gather of keys and values" in names) == grouped


@pytest.mark.parametrize("name", [name for name in KNOWN if known(name).experts == 0])
def test_a_dense_model_does_not_know_how_many_dies_its_group_has(name: str) -> None:
    """Each die decodes its own sequences, without waiting for others."""
    model = CostModel(ASCEND, known(name))
    assert len({float(model.decode_step_s(DecodeLoad(8, 8 * 1000, None, dies, 0))) for dies in (1, 2, 32, 320)}) == 1
    assert set(astuple(model.decode.group(320))) == {0}
    assert not model.decode.uses_microbatch(DecodeLoad(96, 96 * 1000, None, 320, 0, True))


def test_grouped_attention_s_kernels_are_as_good_as_those_measured_and_a_small_batch_waits_for_memory() -> None:
    """The same shares of the peaks: no row of grouped attention was fitted."""
    latent, grouped = CostModel(ASCEND).decode.terms, CostModel(ASCEND, known("llama-3.1-8b")).decode.terms
    ours, theirs = known("llama-3.1-8b").attention, DEEPSEEK_R1.attention
    assert grouped.core_t / ours.decode_core_flops == pytest.approx(latent.core_t / theirs.decode_core_flops)
    assert grouped.core_w / ours.cached_values == pytest.approx(latent.core_w / theirs.cached_values)
    assert grouped.head_t / known("llama-3.1-8b").head_weights == pytest.approx(
        latent.head_t / DEEPSEEK_R1.head_weights
    )
    # Llama-3.1-8B, one sequence of 8K: 7.5 GB of INT8 weights and 1.07 GB of cache at what the kernels reach.
    model = CostModel(ASCEND, known("llama-3.1-8b"))
    calibration, rate = ASCEND.calibration, ASCEND.die.hbm_bytes_per_s
    weights_s = (model.shape.parameters - model.shape.head_weights) / (rate * calibration.weight_memory_efficiency)
    cache_s = 8192 * 131_072 / (rate * calibration.core_memory_efficiency)
    step_s = model.decode_step_s(DecodeLoad(1, 8192, None, 2, 0))
    assert weights_s + cache_s < step_s < 1.35 * (weights_s + cache_s)


@pytest.mark.parametrize("name", FITTING)
def test_memory_holds_what_the_weights_leave(name: str) -> None:
    model = CostModel(ASCEND, known(name))
    dies = 320 if model.shape.parameters > 200e9 else 32
    plan = model.hbm_plan("decode", dies)
    assert plan.kv_tokens == plan.kv // model.shape.kv_token_bytes()
    assert (plan.buffers == 0) == (model.shape.experts == 0)
    if not model.shape.experts:
        absorbed = model.shape.layers * model.shape.absorbed_weights  # a byte more each: BF16
        assert plan.weights == model.shape.parameters + absorbed, "all of them on each die, a byte each"
    assert model.max_batch(10.0, 1000, dies=dies, drafts=0) > 0


def test_a_dense_model_that_no_die_holds_and_a_head_that_is_held_once() -> None:
    with pytest.raises(SpecError, match=r"llama-3.1-70b does not fit .* give a dense model a larger attention_tp"):
        CostModel(ASCEND, known("llama-3.1-70b")).hbm_plan("decode", 320)
    tied = known("qwen3-0.6b")
    apart = replace(tied, tied_head=False)
    for device in DEVICES.values():
        plans = [CostModel(device, shape).hbm_plan("decode", 2).weights for shape in (tied, apart)]
        assert plans[1] - plans[0] == tied.head_weights


def test_drafts_of_a_model_without_mtp_are_refused_wherever_a_step_is_asked_for() -> None:
    model = CostModel(ASCEND, known("kimi-k2"))
    load = DecodeLoad(8, 8 * 1000)
    for ask in (
        lambda: model.decode_step_s(load),
        lambda: model.decode_step(load),
        lambda: model.decode_table(),
        lambda: model.tpot_s(8, 1000),
        lambda: model.max_batch(0.05, 1000),
    ):
        with pytest.raises(SpecError, match="has no MTP module"):
            ask()
    assert model.tpot_s(8, 1000, drafts=0) > 0


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_not_fitted_is_said(name: str) -> None:
    shape = known(name)
    trust = model_trust(shape)
    if name == "deepseek-r1":
        assert trust == ""
    elif isinstance(shape.attention, GroupedAttentionSizes):
        assert trust == "not checked: no published row of grouped attention was fitted"
    else:
        assert trust == "not checked: all published rows are of DeepSeek-R1"

"""Sizes of models as the literature derives them: DeepSeek-R1 to the last weight, and dense and grouped models."""

from dataclasses import astuple, replace
from typing import Any

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.attention import GroupedAttentionSizes
from hardware.errors import SpecError
from tests.hardware.cost.known import KNOWN, known

R1 = DEEPSEEK_R1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (R1.prolog_weights, 52.9e6),
        (R1.attention.key_up_weights, 8.4e6),
        (R1.attention.value_up_weights, 8.4e6),
        (R1.output_weights, 117.4e6),
        (R1.attention_weights, 187.1e6),
        (R1.expert_weights, 44.04e6),
        (R1.dense_weights, 396e6),
        (R1.head_weights, 927e6),
        (R1.linear_flops_per_token, 73.0e9),
        (R1.attention.decode_core_flops * 4096 * R1.layers, 69.6e9),
        (R1.attention.prefill_core_flops * 2048 * R1.layers, 10.2e9),
        (R1.parameters, 671e9),
        (R1.weight_bytes, 671e9),
    ],
)
def test_derived_sizes(value: float, expected: float) -> None:
    assert value == pytest.approx(expected, rel=0.005)


def test_cache_and_messages() -> None:
    assert R1.kv_token_bytes() == 70_272
    assert R1.kv_token_bytes(int8=True) == 39_040
    assert R1.kv_token_bytes() * 4096 == pytest.approx(287.8e6, rel=1e-3)
    assert R1.dispatch_bytes == 7_680
    assert R1.combine_bytes == 14_336
    assert R1.dispatch_bytes / R1.combine_bytes == pytest.approx(0.536, abs=1e-3)
    assert R1.dense_weights == 9 * R1.expert_weights
    assert R1.moe_layers == 58


def test_the_terms_of_deepseek_r1_are_what_the_published_rows_were_fitted_with() -> None:
    """To the last bit: descriptions of other models must not change them."""
    model = CostModel(load_device("ascend-910c"))
    assert model.decode.terms.indexer is None
    assert astuple(model.decode.terms)[:-1] == (
        2.3627329907701042e-07, 5.982626665677359e-05, 4.5196572267320213e-07, 0.00011526264733120632,
        1.1327354392855464e-09, 1.362480473539097e-09, 8.561236623067776e-10, 1.3243733785885966e-06,
        0.0003403850053999687, 1.4715259762095516e-07, 3.782055615555207e-05, 3.4335606111556206e-07,
        8.824796436295485e-05, 3.0963359082742647e-06, 0.0007958075357730749, 1.18398117376e-06,
        1.19746615296e-06, 4.1919021056e-07, 2.5e-05, 1.5000000000000002e-05, 1.5000000000000002e-05, 0.0,
        0.0, 0.0, 0.0,
    )  # fmt: skip
    group = model.decode.group(320)
    assert (group.dispatch_t, group.combine_t) == (1.529208984375e-06, 1.1777343749999998e-06)
    assert model.decode_step_s(DecodeLoad(48, 48 * 4096)) == 0.08343732404969971
    assert model.decode_step_s(DecodeLoad(4, 4 * 4096, drafts=0)) == 0.022072295142833997
    assert model.prefill_step_s(PrefillLoad(262_144, 262_144 * 2048)) == 2.8932074920637842
    assert (model.hbm_plan("decode", 320).weights, model.hbm_plan("decode", 320).buffers) == (
        18_600_820_736,
        676_331_520,
    )
    assert model.hbm_plan("prefill", 32).instance_kv_tokens == 323_509


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes", "kv_bytes_int8"),
    [
        ("deepseek-r1", 671, 70_272, 39_040),
        ("deepseek-v3.2", 672, 85_888, 54_656),
        ("deepseek-v2-lite", 15.7, 31_104, 17_280),
        ("kimi-k2", 1026, 70_272, 39_040),
        ("glm-4.7-flash", 30, 54_144, 30_080),
        ("glm-5", 744, 109_824, 69_888),
        ("youtu-llm-2b", 1.96, 36_864, 20_480),
        ("llama-3.1-8b", 8.03, 131_072, 67_584),
        ("llama-3.1-70b", 70.6, 327_680, 168_960),
        ("mistral-7b-v0.1", 7.24, 131_072, 67_584),
        ("ministral-3-8b", 8.49, 139_264, 71_808),
        ("smollm2-135m", 0.135, 23_040, 12_240),
        ("smollm3-3b", 3.08, 73_728, 38_016),
        ("qwen2.5-7b", 7.62, 57_344, 29_568),
        ("qwen3-0.6b", 0.596, 114_688, 59_136),
        ("qwen3-30b-a3b", 30.5, 98_304, 50_688),
        ("qwen3-235b-a22b", 235, 192_512, 99_264),
        ("gpt-oss-20b", 20.9, 49_152, 26_112),
        ("glm-4.5", 353, 376_832, 194_304),
        ("glm-4.5-air", 106, 188_416, 97_152),
    ],
)
def test_weights_and_caches_of_published_models(name: str, billions: float, kv_bytes: int, kv_bytes_int8: int) -> None:
    model = known(name)
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert model.kv_token_bytes() == kv_bytes
    assert model.kv_token_bytes(int8=True) == kv_bytes_int8


def test_every_known_model_is_counted() -> None:
    counted = test_weights_and_caches_of_published_models.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [row[0] for row in counted] == list(KNOWN)


def test_mixtures_by_hand() -> None:
    """Qwen3-235B-A22B: 94 layers of 64 heads over 4 KV heads of 128, 128 experts of width 1,536; hidden width 4,096."""
    model = known("qwen3-235b-a22b")
    attention = 4096 * (64 + 2 * 4) * 128 + 64 * 128 * 4096
    assert model.attention_weights == attention
    assert model.parameters == 94 * (attention + 128 * 3 * 4096 * 1536 + 4096 * 128) + 2 * 151_936 * 4096
    assert model.kv_token_bytes() == 94 * 2 * 4 * 128 * 2
    # GLM-4.5: 92 layers of 96 heads over 8, three of them dense; 160 experts and a shared one of width 1,536.
    model = known("glm-4.5")
    attention = 5120 * (96 + 2 * 8) * 128 + 96 * 128 * 5120
    experts = 161 * 3 * 5120 * 1536 + 5120 * 160
    assert model.parameters == 92 * attention + 89 * experts + 3 * 3 * 5120 * 12_288 + 2 * 151_552 * 5120
    assert model.kv_token_bytes() == 92 * 2 * 8 * 128 * 2
    # Those that a token meets, without the embedding: 3.3, 22, 32, 12 and 37 B by their publishers, with it.
    for name, billions in (
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("glm-4.5", 32),
        ("glm-4.5-air", 12),
        ("deepseek-r1", 37),
    ):
        model = known(name)
        assert model.linear_flops_per_token / 2 == pytest.approx(billions * 1e9, rel=0.1)


def test_grouped_attention_by_hand() -> None:
    """Llama-3.1-8B: 32 query heads of 128 over 8 KV heads."""
    attention = known("llama-3.1-8b").attention
    assert attention == GroupedAttentionSizes(heads=32, kv_heads=8, head_dim=128)
    assert attention.prolog_weights(4096) == 4096 * (4096 + 1024 + 1024)
    assert attention.result_values == 4096
    assert attention.cached_values == 2 * 8 * 128
    assert attention.token_bytes(int8=True) == 2 * (8 * 128 + 8 * 4)
    assert float(attention.decode_core_flops) == attention.prefill_core_flops == 2.0 * 32 * (128 + 128)
    assert (attention.key_up_weights, attention.value_up_weights) == (0, 0)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("deepseek-r1", {"experts": -1}, "experts is -1"),
        ("llama-3.1-8b", {"dense_layers": 31}, "no routed experts, but layers"),
        ("llama-3.1-8b", {"mtp_layers": 1}, "no routed experts, but layers"),
        ("llama-3.1-8b", {"dense_width": 0}, "dense layers without width"),
        ("llama-3.1-8b", {"attention": GroupedAttentionSizes(32, 5, 128)}, "32 heads in 5 groups"),
        ("llama-3.1-8b", {"attention": GroupedAttentionSizes(32, 0, 128)}, "kv_heads is 0"),
        ("qwen3-30b-a3b", {"active_experts": 0}, "experts that no token visits"),
        ("qwen3-30b-a3b", {"expert_width": 0}, "or without width"),
        ("mistral-7b-v0.1", {"attention": GroupedAttentionSizes(32, 8, 128, 0, 32)}, "window is 0"),
        ("mistral-7b-v0.1", {"attention": GroupedAttentionSizes(32, 8, 128, 4096, 33)}, "a window in 33 of 32 layers"),
    ],
)
def test_impossible_shapes(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        replace(known(name), **change)

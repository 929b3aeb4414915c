"""Formats of weights and KV: values read from a checkpoint, effects on a step, refusals by name."""

from dataclasses import replace
from typing import Any

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, DecodeLoad, PrefillLoad, load_device, shape_from_config
from hardware.cost.model_config import checkpoint_formats
from hardware.cost.model_shape import served_shape
from hardware.cost.trust import model_trust
from hardware.cost.weight_format import (
    BF16,
    FP8,
    MXFP4,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    KvFormat,
    ModelFormats,
    formats_named,
)
from hardware.errors import SpecError
from tests.hardware.cost.known import KNOWN

ASCEND, H800 = load_device("ascend-910c"), load_device("h800")
INT4 = {"num_bits": 4, "type": "int"}
INT8 = {"num_bits": 8, "type": "int"}
FLOAT8 = {"num_bits": 8, "type": "float"}


def group(weights: dict[str, Any], activations: dict[str, Any] | None, *targets: str) -> dict[str, Any]:
    return {"targets": list(targets or ("Linear",)), "weights": weights, "input_activations": activations}


def compressed(*groups: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": dict(enumerate(groups)), **more}


@pytest.mark.parametrize(
    ("stated", "attention", "experts"),
    [
        (None, BF16, BF16),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, FP8, FP8),
        ({"quant_method": "mxfp4"}, BF16, MXFP4),
        ({"quant_method": "awq", "bits": 4}, W4A16, W4A16),
        ({"quant_method": "gptq", "bits": 8}, W8A16, W8A16),
        (compressed(group(INT8, INT8)), W8A8, W8A8),
        (compressed(group(FLOAT8, FLOAT8)), FP8, FP8),
        (compressed(group(INT4, None), ignore=["lm_head", "re:.*self_attn.*"]), BF16, W4A16),
        (compressed(group(INT4, INT8, "re:.*experts.*"), group(INT8, INT8, "re:.*self_attn.*")), W8A8, W4A8),
        (compressed(group(INT4, INT8, "re:.*experts.*")), BF16, W4A8),
    ],
)
def test_a_checkpoint_states_its_formats(stated: object, attention: object, experts: object) -> None:
    shape = shape_from_config({**KNOWN["deepseek-r1"], "quantization_config": stated}, "m")
    assert shape.formats == ModelFormats(attention, experts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        (8, "no JSON object"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not priced; set its format with --weights"),
        ({"quant_method": "gptq", "bits": 3}, "gptq of 3 bits"),
        (compressed(), "names no group"),
        (compressed({"targets": ["Linear"]}), "config_groups.0 does not define the weights"),
        (compressed(group({"num_bits": 2, "type": "int"}, None)), "2 bits of 'int'"),
        (compressed(group(FLOAT8, None)), "8 bits of 'float', activations of None bits"),
        (compressed(group(INT4, {"num_bits": 4})), "activations of 4 bits"),
    ],
)
def test_a_quantisation_that_is_not_priced_is_named(stated: object, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        checkpoint_formats({"quantization_config": stated}, "m", experts=True)
    said = shape_from_config({**KNOWN["deepseek-r1"], "quantization_config": stated}, "m", weights="w8a8")
    assert said.formats == ModelFormats(), "what a person says needs nothing of the checkpoint"


@pytest.mark.parametrize(("kind", "kv"), [("int", "int8"), ("float", "fp8")])
def test_a_checkpoint_may_state_its_cache(kind: str, kv: KvFormat) -> None:
    stated = compressed(group(INT8, INT8), kv_cache_scheme={"num_bits": 8, "type": kind})
    config = {**KNOWN["deepseek-r1"], "quantization_config": stated}
    assert shape_from_config(config, "m").formats.kv == kv
    assert shape_from_config(config, "m", kv="bf16").formats.kv == "bf16"


def test_formats_are_named_for_both_classes_or_each() -> None:
    assert formats_named("w4a8", experts=True) == ModelFormats(W8A8, W4A8)
    assert formats_named("w4a8", experts=False) == ModelFormats(W4A8, W4A8)
    assert formats_named("bf16+w4a8", experts=True, kv="int8") == ModelFormats(BF16, W4A8, "int8")
    with pytest.raises(SpecError, match="'w3a3' are not known; there are w8a8, fp8"):
        formats_named("w3a3", experts=True)
    with pytest.raises(SpecError, match="the model has none"):
        formats_named("bf16+w4a8", experts=False)


def r1(name: str, kv: KvFormat = "bf16") -> CostModel:
    return CostModel(ASCEND, replace(DEEPSEEK_R1, formats=formats_named(name, experts=True, kv=kv)))


def test_formats_are_read_multiplied_and_held_as_they_are() -> None:
    """By hand: half or twice the bytes; BF16 at 353.9 TFLOPS where INT8 has 752."""
    w8a8, w4a8, bf16, w8a16 = (r1(name).decode.terms for name in ("w8a8", "w4a8", "bf16", "w8a16"))
    cal = ASCEND.calibration
    rate = cal.weight_memory_efficiency / cal.packed_memory_efficiency
    assert w4a8.expert_w == pytest.approx(w8a8.expert_w / 2 * rate), "unpacked on the way"
    assert (w4a8.expert_t, w4a8.prolog_w) == (w8a8.expert_t, w8a8.prolog_w)
    assert bf16.expert_w == 2 * w8a8.expert_w
    assert bf16.expert_t == pytest.approx(w8a8.expert_t * 752 / 353.9, rel=1e-3)
    assert (w8a16.expert_w, w8a16.expert_t) == (w8a8.expert_w, bf16.expert_t)
    absorbed_s = 2 * 128 * 128 * 512 / (1.6e12 * ASCEND.calibration.weight_memory_efficiency)
    assert bf16.prolog_w - absorbed_s == pytest.approx(2 * (w8a8.prolog_w - absorbed_s)), "the absorbed ones are BF16"
    plans = {name: r1(name).hbm_plan("decode", 320) for name in ("w8a8", "w4a8", "bf16")}
    experts = 59 * 3 * 7168 * 2048  # one a die in each of 58 layers and the MTP module
    assert plans["w8a8"].weights - plans["w4a8"].weights == experts // 2
    rest = plans["w8a8"].weights - experts
    eight_bit = rest - 62 * 2 * 2 * 128 * 128 * 512 - 59 * 2 * 7168 * 256  # BF16: absorbed matrices, gates
    assert plans["bf16"].weights - plans["w8a8"].weights == experts + eight_bit
    assert r1("bf16").shape.weight_bytes == 2 * r1("w8a8").shape.weight_bytes
    few, many = PrefillLoad(256, 256 * 128), PrefillLoad(262_144, 262_144 * 2048)
    steps = {name: [r1(name).prefill_step_s(load) for load in (few, many)] for name in ("w8a8", "w4a8", "bf16")}
    assert steps["w4a8"][0] < steps["w8a8"][0] < steps["bf16"][0], "a small step waits for weights"
    assert steps["w4a8"][1] == steps["w8a8"][1] < steps["bf16"][1], "a large one for products"


def test_an_int8_cache_takes_and_reads_less() -> None:
    """R1: 512 latents of a byte and 64 rotary values of two, of 1,152 bytes in BF16."""
    plain, small = r1("w8a8"), r1("w8a8", "int8")
    assert (plain.shape.kv_token_bytes(), small.shape.kv_token_bytes()) == (70_272, 39_040)
    assert small.decode.terms.core_w == pytest.approx(plain.decode.terms.core_w * 640 / 1152)
    assert small.decode.terms.core_t == plain.decode.terms.core_t, "products stay BF16"
    ours, theirs = (model.hbm_plan("decode", 320).kv_tokens for model in (small, plain))
    assert ours == pytest.approx(theirs * 70_272 / 39_040, rel=1e-5)


def test_what_a_device_does_not_multiply_is_refused_unless_the_checkpoint_is_converted() -> None:
    fp8 = replace(DEEPSEEK_R1, formats=ModelFormats(FP8, FP8))
    with pytest.raises(SpecError, match="ascend-910c multiplies no FP8"):
        served_shape(fp8, ASCEND, asked=True)
    with pytest.raises(SpecError, match="ascend-910c multiplies no FP8"):
        CostModel(ASCEND, fp8)
    assert served_shape(fp8, ASCEND, asked=False) == DEEPSEEK_R1
    assert served_shape(fp8, H800, asked=False) is fp8
    with pytest.raises(SpecError, match="ascend-910c multiplies no FP8"):
        CostModel(ASCEND, replace(DEEPSEEK_R1, formats=ModelFormats(W8A8, W8A8, "fp8")))
    cached = CostModel(H800, replace(fp8, formats=ModelFormats(FP8, FP8, "fp8"))).decode.terms
    plain = CostModel(H800, fp8).decode.terms
    assert (cached.core_w / plain.core_w, plain.core_t / cached.core_t) == pytest.approx((640 / 1152, 1.7))


def test_int8_and_fp8_take_as_long_where_both_peaks_are_the_same() -> None:
    load = DecodeLoad(48, 48 * 4096)
    fp8 = CostModel(H800, replace(DEEPSEEK_R1, formats=ModelFormats(FP8, FP8)))
    assert fp8.decode_step_s(load) == CostModel(H800).decode_step_s(load)
    assert model_trust(fp8.shape) == ""
    assert "no row of weights BF16; KV BF16 was fitted" in model_trust(r1("bf16").shape)
    assert "KV INT8" in model_trust(r1("w8a8", "int8").shape)

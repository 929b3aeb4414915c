"""Experts in one tensor, and MXFP4: read like transformers, and refused where they are invalid."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from serving.errors import ModelError
from serving.model.checkpoint import Checkpoint
from serving.model.fused_experts import mxfp4
from serving.model.loader import load_model
from serving.model.size import rank_weight_bytes, weight_bytes
from serving.tools.quantize.quantize_settings import Settings
from tests.model.families.checkpoints import write_family
from tests.model.paged import PagedRunner
from tests.tools.quantize.conftest import TOKENS, quick

CPU = torch.device("cpu")
LAYER = "model.layers.0.mlp."


def packed(generator: torch.Generator, experts: int, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Random blocks and scales, whose numbers have the size of weights."""
    blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 124, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
    return blocks, scales


def edit(folder: Path, change: dict[str, Tensor | None], **keys: Any) -> None:
    """Replace tensors of a checkpoint (None = remove), and set keys of its configuration."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | change
    save_file({name: value.contiguous() for name, value in tensors.items() if value is not None}, path)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | keys))


@pytest.fixture(scope="module")
def blocks_and_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint whose experts are MXFP4, and transformers' model of the same numbers."""
    folder = tmp_path_factory.mktemp("mxfp4")
    write_family(folder, "gpt_oss", hidden_size=64, intermediate_size=96)
    generator = torch.Generator().manual_seed(3)
    plain: dict[str, Tensor | None] = {}
    blocked: dict[str, Tensor | None] = {}
    for layer in range(4):
        for name, outputs, inputs in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
            whole = f"model.layers.{layer}.mlp.experts.{name}"
            blocks, scales = packed(generator, 6, outputs, inputs)
            plain[whole] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            blocked |= {whole: None, whole + "_blocks": blocks, whole + "_scales": scales}
    edit(folder, plain)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    edit(folder, blocked, quantization_config=quantization)
    return folder, model


@pytest.fixture
def in_mxfp4(blocks_and_model: tuple[Path, Any], tmp_path: Path) -> tuple[Path, Any]:
    """A copy of that checkpoint, and the model."""
    return shutil.copytree(blocks_and_model[0], tmp_path / "model"), blocks_and_model[1]


def test_mxfp4_is_read_expert_by_expert_and_gives_the_logits_of_its_numbers(in_mxfp4: tuple[Path, Any]) -> None:
    folder, model = in_mxfp4
    tokens = torch.randint(6, 320, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    found = PagedRunner(load_model(folder, dtype="float32")).run("one", tokens, [30])
    assert float((found - expected).abs().max()) < 1e-4
    folder, model = in_mxfp4
    checkpoint, experts = Checkpoint(folder), model.model.layers[1].mlp.experts
    prefix = "model.layers.1.mlp.experts.4."
    parts = {
        "gate_proj.weight": experts.gate_up_proj[4, :, ::2].T, "up_proj.weight": experts.gate_up_proj[4, :, 1::2].T,
        "gate_proj.bias": experts.gate_up_proj_bias[4, ::2], "up_proj.bias": experts.gate_up_proj_bias[4, 1::2],
        "down_proj.weight": experts.down_proj[4].T, "down_proj.bias": experts.down_proj_bias[4],
    }  # fmt: skip
    for name, wanted in parts.items():
        assert checkpoint.shape(prefix + name) == wanted.shape
        for dtype in (torch.float32, torch.bfloat16):  # four bits and an exponent fit either
            found = checkpoint.tensor(prefix + name, dtype, CPU)
            assert found.is_contiguous()
            assert torch.equal(found, wanted.to(dtype))
    assert checkpoint.stored_dtype(prefix + "up_proj.weight") == "U8"
    assert not any("experts.gate_up" in name or "router" in name for name in checkpoint.names)
    folder, model = in_mxfp4
    numbers = sum(one.numel() for one in model.parameters())
    assert weight_bytes(folder, 2) == 2 * numbers
    routed = sum(one.numel() for name, one in model.named_parameters() if ".experts." in name)
    assert rank_weight_bytes(folder, 2, experts=6, slots=3) == 2 * (numbers - routed) + routed


def test_it_is_quantised_to_int8(in_mxfp4: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = in_mxfp4
    quick(folder, tmp_path / "int8", Settings(tokens=TOKENS, window=64, trials=False))
    tokens = torch.randint(6, 320, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    exact, found = (
        PagedRunner(load_model(one, dtype="float32")).run("one", tokens, [30]) for one in (folder, tmp_path / "int8")
    )
    assert load_file(tmp_path / "int8" / "model.safetensors")[LAYER + "experts.3.up_proj.weight"].dtype == torch.int8
    assert float(((found - exact).norm(dim=1) / exact.norm(dim=1)).median()) < 0.06


def test_all_numbers_of_mxfp4() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(4, 4, 16)
    scales = torch.tensor([[0, 1, 120, 127], [128, 140, 254, 200], [60, 127, 127, 127], [127, 1, 1, 0]])
    scales = scales.to(torch.uint8)
    wanted = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    assert torch.equal(mxfp4(blocks, scales), wanted)


BROKEN: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "scales of another shape": (
        {LAYER + "experts.down_proj_scales": torch.zeros(6, 64, 2, dtype=torch.uint8)},
        r"down_proj_blocks has no _scales of \[6, 64, 3\]: fetch",
    ),
    "no scales": ({LAYER + "experts.down_proj_scales": None}, "down_proj_blocks has no _scales"),
    "no blocks": ({LAYER + "experts.down_proj_blocks": None}, "down_proj_scales has no _blocks"),
    "blocks of another size": (
        {LAYER + "experts.down_proj_blocks": torch.zeros(6, 64, 3, 8, dtype=torch.uint8)},
        "cannot be split into experts",
    ),
    "experts beyond all reason": (
        {LAYER + "experts.down_proj_bias": torch.zeros(5000, 1)}, "cannot be split into experts",
    ),
    "an odd width": ({LAYER + "experts.gate_up_proj_bias": torch.zeros(6, 191)}, "not as many of gate as of up"),
    "numbers in place of bytes": (
        {LAYER + "experts.down_proj_blocks": torch.zeros(6, 64, 3, 16)}, "_blocks and its _scales are not bytes",
    ),
    "twice": ({LAYER + "experts.2.up_proj.weight": torch.zeros(96, 64)}, "experts.2.up_proj.weight twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_told_apart_is_refused(in_mxfp4: tuple[Path, Any], case: str) -> None:
    change, message = BROKEN[case]
    edit(in_mxfp4[0], change)
    with pytest.raises(ModelError, match=message):
        load_model(in_mxfp4[0], dtype="float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({LAYER + "experts.down_proj_bias": torch.zeros(5, 64)}, r"lacks model.layers.0.mlp.experts.5.down_proj.bias"),
        ({LAYER + "router.bias": None}, "lacks model.layers.0.mlp.gate.bias"),
        ({"model.layers.0.self_attn.sinks": None}, "lacks model.layers.0.self_attn.sinks"),
        ({LAYER + "router.weight": torch.zeros(6, 60)}, r"mlp.gate.weight \[6, 60\] instead of \[6, 64\]"),
        (
            {LAYER + "experts.down_proj_scales": torch.full((6, 64, 3), 255, dtype=torch.uint8)},
            "down_proj.weight has values that are not numbers",
        ),
    ],
)
def test_what_does_not_fit_the_configuration_is_named(
    in_mxfp4: tuple[Path, Any], change: dict[str, Tensor | None], message: str
) -> None:
    edit(in_mxfp4[0], change)
    with pytest.raises(ModelError, match=message):
        load_model(in_mxfp4[0], dtype="float32")

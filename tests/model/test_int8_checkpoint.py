"""Reading INT8 checkpoints (compressed-tensors, int-quantized): accepted forms, and refusals in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.errors import ModelError
from serving.model.config import read_architecture
from serving.model.linear import Int8Linear
from serving.model.loader import load_model
from tests.model.int8_checkpoint import OUT, int8_checkpoint
from tests.model.latent import latent_weights
from tests.model.random_checkpoint import write_random_checkpoint

INTO = "model.layers.0.self_attn.into"
Q_A = "model.layers.0.self_attn.q_a_proj.weight"
KV_A = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
KV_B = "model.layers.0.self_attn.kv_b_proj.weight"


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    found = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, folder / "model.safetensors")


def test_int8_products_take_weight_and_scale_as_they_are(tmp_path: Path) -> None:
    folder = int8_checkpoint(tmp_path, [Q_A, KV_A, OUT])
    tensors = load_file(folder / "model.safetensors")
    weights = latent_weights(load_model(folder).blocks[0])
    assert isinstance(weights.out, Int8Linear)
    assert isinstance(weights.into, Int8Linear)
    assert torch.equal(weights.out.weight, tensors[OUT])
    assert torch.equal(weights.out.scale, tensors[OUT + "_scale"].float().flatten())
    assert torch.equal(weights.into.weight, torch.cat((tensors[Q_A], tensors[KV_A])))


def test_mixed_products_and_what_attention_absorbs_are_computed_in_floating_point(tmp_path: Path) -> None:
    mixed = latent_weights(load_model(int8_checkpoint(tmp_path / "mixed", [Q_A])).blocks[0]).into
    exact = latent_weights(load_model(write_random_checkpoint(tmp_path / "exact")).blocks[0])
    assert not isinstance(mixed, Int8Linear)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(mixed(x), exact.into(x), rtol=0.05, atol=0.05)
        assert not torch.equal(mixed(x), exact.into(x))
    quantised = latent_weights(load_model(int8_checkpoint(tmp_path / "int8", [KV_B])).blocks[0]).expand
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(quantised(x), exact.expand(x), rtol=0.05, atol=0.05)


def test_scales_may_be_flat_and_keys_left_out(tmp_path: Path) -> None:
    folder = int8_checkpoint(tmp_path, [OUT])
    change(folder, **{OUT + "_scale": load_file(folder / "model.safetensors")[OUT + "_scale"].flatten()})
    assert isinstance(latent_weights(load_model(folder).blocks[0]).out, Int8Linear)
    folder = int8_checkpoint(tmp_path, [OUT])
    raw = json.loads((folder / "config.json").read_text())
    del raw["quantization_config"]["config_groups"]["group_0"]["weights"]["dynamic"]
    del raw["quantization_config"]["kv_cache_scheme"]
    (folder / "config.json").write_text(json.dumps(raw))
    assert read_architecture(folder).quantization.int8


@pytest.mark.parametrize("scale", [None, torch.ones(1), torch.ones(64, 2)])
def test_int8_without_a_scale_for_each_channel(tmp_path: Path, scale: torch.Tensor | None) -> None:
    folder = int8_checkpoint(tmp_path, [OUT])
    change(folder, **{OUT + "_scale": scale})
    with pytest.raises(ModelError, match=r"o_proj.weight has no _scale of \[64, 1\]: quantise it again"):
        load_model(folder)


def test_a_scale_without_its_matrix_is_unexpected(tmp_path: Path) -> None:
    folder = int8_checkpoint(tmp_path, [])
    change(folder, **{"model.layers.9.self_attn.o_proj.weight_scale": torch.ones(64, 1)})
    with pytest.raises(ModelError, match="unexpected"):
        load_model(folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "pack-quantized", "format = 'pack-quantized'"),
        (("kv_cache_scheme",), {"num_bits": 8}, "a kv_cache_scheme"),
        (("config_groups",), {}, "quantization_config.config_groups"),
        (("config_groups", "group_0"), 5, "config_groups.group_0"),
        (("config_groups", "group_0", "weights", "num_bits"), 4, "group_0.weights.num_bits = 4"),
        (("config_groups", "group_0", "weights", "symmetric"), False, "group_0.weights.symmetric = False"),
        (("config_groups", "group_0", "weights", "strategy"), "group", "group_0.weights.strategy = 'group'"),
        (("config_groups", "group_0", "weights", "type"), "float", "group_0.weights.type = 'float'"),
        (("config_groups", "group_0", "input_activations"), None, "group_0.input_activations = None"),
        (("config_groups", "group_0", "input_activations", "dynamic"), False, "input_activations.dynamic = False"),
        (("config_groups", "group_0", "input_activations", "strategy"), "tensor", "strategy = 'tensor'"),
        (("config_groups", "group_0", "output_activations"), {"num_bits": 8}, "group_0.output_activations"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path: Path, path: tuple[str, ...], value: object, message: str) -> None:
    folder = int8_checkpoint(tmp_path, [OUT])
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    place = raw["quantization_config"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError) as caught:
        read_architecture(folder)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)

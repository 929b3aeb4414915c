"""Sizes of DeepSeek-R1 as the literature derives them, and reading of a config.json."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware.cost import DEEPSEEK_R1, load_shape, shape_from_config
from hardware.errors import SpecError

CONFIG: dict[str, Any] = {
    "hidden_size": 7168, "num_hidden_layers": 61, "first_k_dense_replace": 3, "num_attention_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_intermediate_size": 2048, "intermediate_size": 18432, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "vocab_size": 129280, "num_nextn_predict_layers": 1, "rope_theta": 10000,
}  # fmt: skip
R1 = DEEPSEEK_R1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (R1.prolog_weights, 52.9e6),
        (R1.key_up_weights, 8.4e6),
        (R1.value_up_weights, 8.4e6),
        (R1.output_weights, 117.4e6),
        (R1.attention_weights, 187.1e6),
        (R1.expert_weights, 44.04e6),
        (R1.dense_weights, 396e6),
        (R1.head_weights, 927e6),
        (R1.linear_flops_per_token, 73.0e9),
        (R1.decode_core_flops * 4096 * R1.layers, 69.6e9),
        (R1.prefill_core_flops * 2048 * R1.layers, 10.2e9),
        (R1.parameters, 671e9),
        (R1.weight_bytes, 671e9),
    ],
)
def test_derived_sizes(value: float, expected: float) -> None:
    assert value == pytest.approx(expected, rel=0.005)


def test_cache_and_messages() -> None:
    assert R1.kv_token_bytes() == 70_272
    assert R1.kv_token_bytes(int8_latent=True) == 39_040
    assert R1.kv_token_bytes() * 4096 == pytest.approx(287.8e6, rel=1e-3)
    assert R1.dispatch_bytes == 7_680
    assert R1.combine_bytes == 14_336
    assert R1.dispatch_bytes / R1.combine_bytes == pytest.approx(0.536, abs=1e-3)


def test_nine_experts_are_as_large_as_a_dense_layer() -> None:
    assert R1.dense_weights == 9 * R1.expert_weights
    assert R1.moe_layers == 58


def test_a_config_gives_the_constant() -> None:
    assert shape_from_config(CONFIG, "deepseek-r1") == R1


def test_a_folder_and_its_file_give_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "deepseek-r1"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert load_shape(folder) == load_shape(folder / "config.json") == R1


def test_queries_may_be_projected_directly() -> None:
    direct = shape_from_config({**CONFIG, "q_lora_rank": None}, "v2-lite")
    assert direct.q_rank == 0
    assert direct.prolog_weights == 7168 * 128 * 192 + 7168 * 576


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": None}, "no kv_lora_rank"),
        ({"hidden_size": "7168"}, "hidden_size is '7168'"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 0}, "heads is 0"),
        ({"first_k_dense_replace": 62}, "more dense layers"),
        ({"num_experts_per_tok": 300}, "more active experts"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        shape_from_config({**CONFIG, **change}, "m")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: No such file"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecError, match="no JSON"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SpecError, match="no JSON object"):
        load_shape(tmp_path)


def test_a_shape_cannot_be_made_impossible() -> None:
    with pytest.raises(SpecError, match="experts is -1"):
        replace(R1, experts=-1)


@pytest.mark.timeout(20)
def test_a_configuration_that_is_no_file_or_beyond_all_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SpecError, match="is no regular file"):
        load_shape(tmp_path)
    (tmp_path / "config.json").unlink()
    for text, message in (("[" * 100_000, "no JSON"), ('{"hidden_size": 1' + "0" * 400 + "}", "which no model has")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(SpecError, match=message):
            load_shape(tmp_path)

"""Reading a config.json: every supported architecture, by its own keys, and one line about all errors."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware.cost import DEEPSEEK_R1, load_shape, shape_from_config
from hardware.cost.attention import GroupedAttentionSizes, IndexerSizes, LatentAttentionSizes
from hardware.cost.model_config import PRICED_FAMILIES
from hardware.errors import SpecError
from tests.hardware.cost.known import KNOWN, known

R1 = KNOWN["deepseek-r1"]
QWEN_MOE = KNOWN["qwen3-30b-a3b"]


def test_a_config_a_folder_and_its_file_give_the_constant(tmp_path: Path) -> None:
    assert shape_from_config(R1, "deepseek-r1") == DEEPSEEK_R1
    folder = tmp_path / "deepseek-r1"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(R1))
    assert load_shape(folder) == load_shape(folder / "config.json") == DEEPSEEK_R1
    direct = shape_from_config({**R1, "q_lora_rank": None}, "v2-lite")
    assert isinstance(direct.attention, LatentAttentionSizes)
    assert direct.attention.q_rank == 0
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
        shape_from_config({**R1, **change}, "m")


@pytest.mark.timeout(20)
def test_files_that_are_none_or_beyond_all_reason_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json: No such file"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecError, match="no JSON"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SpecError, match="no JSON object"):
        load_shape(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SpecError, match="is no regular file"):
        load_shape(tmp_path)
    (tmp_path / "config.json").unlink()
    for text, message in (
        ("[" * 100_000, "no JSON"),
        ('{"model_type": "llama", "num_hidden_layers": 1' + "0" * 400 + "}", "which no model has"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(SpecError, match=message):
            load_shape(tmp_path)


# --- architectures ------------------------------------------------------------------------------------------------
def test_every_architecture_has_a_published_model_among_the_tests() -> None:
    assert {config["model_type"] for config in KNOWN.values()} == set(PRICED_FAMILIES)


@pytest.mark.parametrize("name", KNOWN)
def test_attention_and_feed_forward_are_of_their_kind(name: str) -> None:
    shape, family = known(name), PRICED_FAMILIES[KNOWN[name]["model_type"]]
    assert isinstance(shape.attention, LatentAttentionSizes if family.latent else GroupedAttentionSizes)
    assert (shape.moe_layers > 0) == (shape.experts > 0) == family.experts


@pytest.mark.parametrize("kind", ["qwen3_next", "gemma3", "mistral4", "", 7, ["llama"], None])
def test_another_architecture_is_refused_and_the_known_ones_are_named(kind: object) -> None:
    with pytest.raises(SpecError) as refused:
        shape_from_config({**R1, "model_type": kind}, "m")
    text = str(refused.value)
    assert "\n" not in text
    assert all(known_one in text for known_one in PRICED_FAMILIES)
    assert "has no model_type" in text if kind is None else repr(kind) in text


@pytest.mark.parametrize(
    ("change", "dense"),
    [
        ({}, 0),
        ({"mlp_only_layers": [0, 5]}, 2),
        ({"decoder_sparse_step": 2}, 24),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]}, 25),
        ({"mlp_layer_types": ["dense"] * 8 + ["sparse"] * 40}, 8),
        ({"num_experts": None, "num_local_experts": 128}, 0),
    ],
)
def test_which_layers_are_dense(change: dict[str, Any], dense: int) -> None:
    shape = shape_from_config({**QWEN_MOE, **change}, "m")
    assert (shape.dense_layers, shape.experts) == (dense, 128)


@pytest.mark.parametrize(
    ("name", "left_out", "dense"),
    [("glm-4.5-air", "first_k_dense_replace", 1), ("glm-4.7-flash", "mlp_layer_types", 1), ("glm-5", "", 3)],
)
def test_dense_layers_of_families_that_have_some_anyway(name: str, left_out: str, dense: int) -> None:
    config = {key: value for key, value in KNOWN[name].items() if key != left_out}
    assert shape_from_config(config, name).dense_layers == dense


def test_what_families_need_not_say_has_its_default() -> None:
    config = {key: value for key, value in KNOWN["llama-3.1-8b"].items() if key != "num_key_value_heads"}
    assert shape_from_config(config, "m").attention == GroupedAttentionSizes(32, 32, 128)
    assert shape_from_config({**KNOWN["qwen3-0.6b"], "head_dim": None}, "m") == replace(known("qwen3-0.6b"), name="m")
    for name, heads in (("deepseek-v3.2", 64), ("glm-5", 32)):
        config = {key: value for key, value in KNOWN[name].items() if not key.startswith("index_")}
        indexer = shape_from_config(config, name).indexer
        assert indexer is not None
        assert (indexer.heads, indexer.dim, indexer.top_k) == (heads, 128, 2048)
    assert shape_from_config({**R1, "moe_layer_freq": 2}, "m").moe_layers == 29, "layers 4, 6, ... 60"
    known("glm-4.5-air").check_drafts(2)
    known("kimi-k2").check_drafts(0)
    with pytest.raises(SpecError, match="model kimi-k2: has no MTP module to draft 1 tokens with; set drafts to 0"):
        known("kimi-k2").check_drafts(1)


@pytest.mark.parametrize(
    ("name", "change", "limit", "layers"),
    [
        ("deepseek-v3.2", {}, 2048, 61),
        ("mistral-7b-v0.1", {}, 4096, 32),
        ("mistral-7b-v0.1", {"sliding_window": None}, None, 32),
        ("gpt-oss-20b", {}, 128, 12),
        ("qwen2.5-7b", {}, None, 28),
        ("qwen2.5-7b", {"use_sliding_window": True}, 131_072, 28),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 21}, 131_072, 7),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 28}, None, 28),
        ("mistral-7b-v0.1", {"layer_types": ["full_attention"] * 32}, None, 32),
        ("qwen3-0.6b", {"layer_types": ["full_attention"] * 28, "sliding_window": 512}, None, 28),
        ("qwen3-0.6b", {"layer_types": ["sliding_attention"] * 28, "sliding_window": 512}, 512, 28),
    ],
)
def test_how_far_attention_reaches(name: str, change: dict[str, Any], limit: int | None, layers: int) -> None:
    shape = shape_from_config({**KNOWN[name], **change}, name)
    assert shape.attention.reach(shape.layers).limit == limit
    assert shape.attention.reach(shape.layers).share * shape.layers == pytest.approx(
        shape.layers if limit is None else layers
    )


@pytest.mark.parametrize(
    ("change", "choosing"),
    [
        ({}, 78),
        ({"indexer_types": ["full"] * 3 + ["shared"] * 75}, 3),
        ({"index_topk_pattern": "FFS" * 26}, 52),
        ({"index_topk_freq": 4}, 21),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 21),
        ({"index_topk_freq": 0}, 78),
    ],
)
def test_which_layers_choose(change: dict[str, Any], choosing: int) -> None:
    """The others use an earlier layer's choice; each has a key's place in its rows anyway."""
    shape = shape_from_config({**KNOWN["glm-5"], **change}, "m")
    assert shape.indexer == IndexerSizes(heads=64, dim=128, top_k=2048, layers=choosing)
    assert shape.kv_token_bytes() == known("glm-5").kv_token_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"index_topk": 0}, "top_k is 0"),
        ({"index_n_heads": "64"}, "index_n_heads is '64'"),
        ({"indexer_types": ["full"]}, "indexer_types is no list"),
        ({"indexer_types": ["full"] * 77 + ["half"]}, "indexer_types is no list"),
        ({"index_topk_pattern": "F"}, "index_topk_pattern is 'F', no F or S for each of 78 layers"),
        ({"index_topk_pattern": 7}, "index_topk_pattern is 7"),
        ({"indexer_types": ["shared"] * 78}, "layers is 0"),
    ],
)
def test_what_is_wrong_with_an_indexer_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        shape_from_config({**KNOWN["glm-5"], **change}, "m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types is no list"),
        ({"mlp_layer_types": ["sparse"] * 47 + ["wide"]}, "mlp_layer_types is no list"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3, not a list"),
        ({"num_experts": None}, "no n_routed_experts"),
        ({"num_experts": 0}, "more active experts than experts"),
        ({"num_key_value_heads": 5}, "32 heads in 5 groups"),
        ({"num_attention_heads": 0}, "heads is 0"),
        ({"first_k_dense_replace": 49}, "more dense layers than layers"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        shape_from_config({**QWEN_MOE, **change}, "m")

"""Quantised folders load and compute nearly the same as the original, in every variant of the architecture."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from serving.cli import main
from serving.model.config import read_architecture
from serving.model.kv_cache import KvCache
from serving.model.linear import Int8Linear, PlainLinear, PrepackedLinear
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.size import weight_bytes
from serving.tools.quantize.quantize_report import QuantizationReport
from serving.tools.quantize.quantize_settings import NO_STEPS, Settings
from serving.tools.quantize.stream import LayerRunner, Windows
from tests.cases.nightly import mostly_nightly
from tests.model.latent import latent_weights
from tests.model.random_checkpoint import write_random_checkpoint
from tests.tools.quantize.conftest import TOKENS, quick
from tests.tools.quantize.matrices import FAMILY_KEYS, V2

VARIANTS: dict[str, dict[str, object]] = {
    "v2": V2,
    "v2-with-query-latent": V2 | {"q_lora_rank": 48},
    "biased-halves": {"rope_interleave": False, "attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "own-draft-head": {"own_draft_head": True},
    "no-drafts": {"num_nextn_predict_layers": 0},
    "no-shared": {"n_shared_experts": 0},
    "fp8": {"fp8": True, "dtype": "bfloat16"},
    "bf16-shards": {"shards": 3, "dtype": "bfloat16"},
    **FAMILY_KEYS,
}


@dataclass(frozen=True)
class Pair:
    """A variant's folders and the report of its quantisation."""

    original: Path
    int8: Path
    report: QuantizationReport


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    write_random_checkpoint(folder / "original", **VARIANTS[request.param])  # type: ignore[arg-type]
    return Pair(folder / "original", folder / "int8", quick(folder / "original", folder / "int8"))


def logits(model: Model) -> tuple[Tensor, Tensor | None]:
    """The model's and its draft layer's, on some random windows."""
    windows = Windows(torch.randint(320, (4, 33), generator=torch.Generator().manual_seed(5)))
    runner = LayerRunner(model.config, windows)
    with torch.inference_mode():
        hidden = model.embed[windows.fed]
        for block in model.blocks:
            hidden = runner.block(block, hidden)
        drafted = model.mtp[0].logits(runner.draft(model.mtp[0], hidden)) if model.mtp else None
        return model.logits(hidden), drafted


def median_error(found: Tensor, exact: Tensor) -> float:
    """Median error of rows. Routing of a random model has many near ties: a token routed to another expert is far
    off.
    """
    return float(((found - exact).norm(dim=1) / exact.norm(dim=1)).median())


EVERY = list(VARIANTS)
EVERY_AS = "tests/tools/quantize/test_round_trip.py::test_every_variant_computes_nearly_the_same"


@pytest.mark.parametrize("pair", mostly_nightly(EVERY, EVERY[::4], EVERY_AS), indirect=True)
def test_every_variant_computes_nearly_the_same(pair: Pair) -> None:
    exact, exact_draft = logits(load_model(pair.original, dtype="float32"))
    found, found_draft = logits(load_model(pair.int8, dtype="float32"))
    assert 0 < median_error(found, exact) < 0.06
    if exact_draft is not None:
        assert found_draft is not None
        assert 0 < median_error(found_draft, exact_draft) < 0.12
    assert max(pair.report.trials["chosen"].errors.values()) < 0.03
    experts = read_architecture(pair.original).experts
    assert (experts is None) == (not pair.report.expert_rows)
    for seen in pair.report.expert_rows.values():
        assert experts is not None
        assert sum(seen.values()) == pair.report.calibration_tokens * experts.per_token


@pytest.mark.parametrize("pair", FAMILY_KEYS, indirect=True)
def test_every_family_is_evaluated(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Once there were three little frogs. " * 20)
    words = ["evaluate", "--model", pair.int8, "--reference", pair.original, "--text", tmp_path / "text.txt"]
    options = ["--context", 64, "--dtype", "float32", "--json", tmp_path / "report.json", "--threads", 1]
    assert main([*map(str, [*words, *options])]) == 0
    compared = json.loads((tmp_path / "report.json").read_text())["texts"][0]["compared"]
    assert 0 < compared["divergence"]["value"] < 0.1


def test_the_right_products_are_int8(quantised: Path) -> None:
    model = load_model(quantised)
    block, draft = model.blocks[1], model.mtp[0]
    weights = latent_weights(block)
    int8 = [weights.into, weights.query_up, weights.out, model.head, draft.fuse, draft.head]
    assert all(isinstance(product, Int8Linear) for product in int8)
    assert isinstance(weights.expand, PlainLinear | PrepackedLinear)
    tensors = load_file(quantised / "model.safetensors")
    assert tensors["model.layers.1.mlp.experts.7.down_proj.weight"].dtype == torch.int8
    assert tensors["model.layers.1.mlp.experts.7.down_proj.weight_scale"].shape == (64, 1)
    assert tensors["model.layers.1.self_attn.kv_b_proj.weight"].dtype == torch.int8
    kept = ("mlp.gate.", "norm", "embed_tokens")
    assert {name.rpartition(".")[2] for name in tensors if any(part in name for part in kept)} == {
        "weight",
        "e_score_correction_bias",
    }


def test_int8_is_counted_and_kept_apart(quantised: Path, original: Path) -> None:
    tensors = load_file(quantised / "model.safetensors")
    floats = sum(t.numel() for n, t in tensors.items() if t.dtype != torch.int8 and not n.endswith("weight_scale"))
    exact = sum(t.nbytes for n, t in tensors.items() if t.dtype == torch.int8 or n.endswith("weight_scale"))
    assert weight_bytes(quantised, 2) == exact + 2 * floats
    assert weight_bytes(quantised, 4) == exact + 4 * floats

    # The same tokens leave different rows.
    fingerprints = {
        KvCache(read_architecture(folder), 1, 16, torch.float32).layout_fingerprint for folder in (original, quantised)
    }
    assert len(fingerprints) == 2


def test_the_configuration_says_what_was_done(original: Path, quantised: Path, tmp_path: Path) -> None:
    raw = json.loads((quantised / "config.json").read_text())
    quantization = raw["quantization_config"]
    assert (quantization["quant_method"], quantization["format"]) == ("compressed-tensors", "int-quantized")
    assert quantization["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    assert quantization["config_groups"]["group_0"]["input_activations"]["dynamic"] is True
    assert quantization["ignore"] == ["re:^(.*\\.mlp\\.gate)$", "re:^(.*\\.indexer\\..*)$"]
    assert read_architecture(quantised).quantization.int8
    quick(original, tmp_path / "kept", Settings(tokens=TOKENS, window=64, trials=False, kept=frozenset({"head"})))
    kept = json.loads((tmp_path / "kept" / "config.json").read_text())["quantization_config"]
    assert len(kept["ignore"]) == len(quantization["ignore"]) + 1
    assert load_file(tmp_path / "kept" / "model.safetensors")["lm_head.weight"].dtype == torch.float32
    assert isinstance(load_model(tmp_path / "kept").head, PrepackedLinear | PlainLinear)


def test_what_decode_absorbs_is_int8_in_its_weights_alone(original: Path, tmp_path: Path) -> None:
    """Its error is that of weights, folded into o_proj or not; kept, it is scaled by powers of two at most."""
    steps = Settings(tokens=TOKENS, window=64, trials=False)
    error = quick(original, tmp_path / "int8", steps).trials["chosen"].errors
    assert 0 < error["latent_up"] < 0.7 * error["attention_in"]
    kept = replace(steps, kept=frozenset({"latent_up"}))
    assert "latent_up" not in quick(original, tmp_path / "kept", kept).trials["chosen"].errors
    ignored = json.loads((tmp_path / "kept" / "config.json").read_text())["quantization_config"]["ignore"]
    assert any("kv_b_proj" in pattern for pattern in ignored)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    before, after = (load_file(folder / "model.safetensors")[name] for folder in (original, tmp_path / "kept"))
    octaves = (before / after).log2()
    assert torch.equal(octaves, octaves.round())


def test_a_tied_head_is_untied_only_when_it_is_quantised(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "tied", tie_word_embeddings=True)
    quick(tmp_path / "tied", tmp_path / "all")
    quick(tmp_path / "tied", tmp_path / "kept", Settings(tokens=256, trials=False, kept=frozenset({"head"})))
    assert not read_architecture(tmp_path / "all").tie_word_embeddings
    assert read_architecture(tmp_path / "kept").tie_word_embeddings
    assert "lm_head.weight" not in load_file(tmp_path / "kept" / "model.safetensors")
    original, embedded = (load_file(tmp_path / name / "model.safetensors") for name in ("tied", "all"))
    assert torch.equal(original["model.embed_tokens.weight"], embedded["model.embed_tokens.weight"])


@pytest.mark.nightly("tests/tools/quantize/test_round_trip.py::test_every_variant_computes_nearly_the_same")
def test_the_same_seed_gives_the_same_bytes_and_steps_touch_nothing_else(
    original: Path, quantised: Path, tmp_path: Path
) -> None:
    quick(original, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (quantised / "model.safetensors").read_bytes()
    quick(original, tmp_path / "other", Settings(tokens=TOKENS, window=64, trials=False, seed=1))
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (quantised / "model.safetensors").read_bytes()

    quick(original, tmp_path / "plain", Settings(tokens=256, trials=False, steps=NO_STEPS))
    before, after = (load_file(folder / "model.safetensors") for folder in (original, tmp_path / "plain"))
    kept = [name for name in before if after[name].dtype != torch.int8]
    assert kept
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.nightly("tests/tools/quantize/test_round_trip.py::test_every_variant_computes_nearly_the_same")
def test_all_steps_together_beat_plain_rounding(original: Path, tmp_path: Path) -> None:
    report = quick(original, tmp_path / "int8", Settings(tokens=2048, window=64))
    assert list(report.trials) == [
        "chosen", "without fold", "without search", "without clip", "without compensate", "plain rounding",
    ]  # fmt: skip
    chosen, plain = report.trials["chosen"], report.trials["plain rounding"]
    assert all(chosen.errors[name] < plain.errors[name] for name in plain.errors)
    assert report.bytes_after < 0.5 * report.bytes_before

"""Loading: shards, FP8, draft layers, and the messages for broken folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from serving.errors import ModelError
from serving.model.checkpoint import Checkpoint, dequantise
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native import library
from tests.model.int8_checkpoint import round_to_int8
from tests.model.paged import PagedRunner
from tests.model.random_checkpoint import write_random_checkpoint

TOKENS = list(range(6, 40))
needs_native = pytest.mark.skipif(library.load() is None, reason="needs the native library")


def logits(model: Model) -> Tensor:
    return PagedRunner(model).run("s", TOKENS, [len(TOKENS)])


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    """Replace (or, with None, remove) tensors of a single-file checkpoint; `__` represents a dot."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, value in changes.items():
        if value is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, file)


def test_shards_and_single_file_hold_the_same_model(tmp_path: Path) -> None:
    one = write_random_checkpoint(tmp_path / "one", shards=1)
    many = write_random_checkpoint(tmp_path / "many", shards=3)
    expected = logits(load_model(one))
    assert torch.equal(expected, logits(load_model(many)))
    (many / "model.safetensors.index.json").unlink()
    assert torch.equal(logits(load_model(many)), expected), "without an index, too"


def test_fp8_blocks_are_dequantised(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 160}  # blocks of 128 with a remainder, both ways
    fp8 = write_random_checkpoint(tmp_path / "fp8", fp8=True, **wide)
    plain = write_random_checkpoint(tmp_path / "plain", **wide)
    stored = load_file(fp8 / "model.safetensors")
    restored = {}
    for name, value in stored.items():
        if name + "_scale_inv" in stored:
            scale = stored[name + "_scale_inv"]
            full = torch.kron(scale, torch.ones(128, 128))[: value.shape[0], : value.shape[1]]
            restored[name] = value.float() * full
        elif not name.endswith("_scale_inv"):
            restored[name] = value
    original = load_file(plain / "model.safetensors")
    name = "model.layers.0.mlp.gate_proj.weight"
    assert (restored[name] - original[name]).abs().max() < 0.04 * original[name].abs().max()
    save_file(restored, plain / "model.safetensors")
    assert torch.equal(logits(load_model(fp8)), logits(load_model(plain)))
    value = torch.ones(3, 5).to(torch.float8_e4m3fn)
    found = dequantise(value, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), (2, 2))
    assert found.tolist() == [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], [4, 4, 5, 5, 6]]


def test_fp8_without_scales_is_refused(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, fp8=True)
    assert not any(name.endswith("_scale_inv") for name in Checkpoint(folder).names)
    rewrite(folder, model__layers__0__mlp__gate_proj__weight_scale_inv=None)
    with pytest.raises(ModelError, match=r"gate_proj\.weight has no _scale_inv"):
        load_model(folder)


@pytest.mark.parametrize("shape", [(1,), (2, 1), (96, 1), (2, 2), (1, 1, 1)])
def test_fp8_scales_of_other_blocks_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """One scale per row, or blocks of another size: read as if they fitted, they would give other weights."""
    folder = write_random_checkpoint(tmp_path, fp8=True)
    rewrite(folder, model__layers__0__mlp__gate_proj__weight_scale_inv=torch.ones(shape))
    with pytest.raises(ModelError, match=r"gate_proj\.weight has scales of .* not one for each block of 128 x 128"):
        load_model(folder)


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, value: float, native: bool) -> None:
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    spoiled = load_file(folder / "model.safetensors")["model.layers.1.mlp.experts.5.up_proj.weight"]
    spoiled[3, 7] = value
    rewrite(folder, model__layers__1__mlp__experts__5__up_proj__weight=spoiled)
    with pytest.raises(ModelError, match=r"experts\.5\.up_proj\.weight has values that are not numbers"):
        load_model(folder, native=native)


def test_large_weights_are_numbers_bfloat16_is_close_and_progress_counts(tmp_path: Path) -> None:
    """Their sum exceeds the range of the type."""
    folder = write_random_checkpoint(tmp_path)
    rewrite(folder, model__norm__weight=torch.full((64,), 3e38))
    assert bool((load_model(folder).norm.weight == 3e38).all())
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    model = load_model(folder)
    assert model.dtype == torch.bfloat16
    exact = logits(load_model(folder, dtype="float32"))
    assert (logits(model) - exact).abs().mean() < 0.05 * exact.std()
    calls: list[tuple[int, int]] = []
    load_model(write_random_checkpoint(tmp_path), progress=lambda done, total: calls.append((done, total)))
    total = calls[0][1]
    assert calls == [(n + 1, total) for n in range(total)]


def test_scales_that_are_no_numbers_and_weights_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    folder = round_to_int8(write_random_checkpoint(tmp_path))
    name = "model.layers.0.mlp.down_proj.weight_scale"
    scales = load_file(folder / "model.safetensors")[name]
    scales[0] = float("nan")
    rewrite(folder, **{name.replace(".", "__"): scales})
    with pytest.raises(ModelError, match=r"down_proj\.weight_scale has values that are not numbers"):
        load_model(folder)

    write_random_checkpoint(tmp_path)
    rewrite(folder, model__norm__weight=torch.ones(64, dtype=torch.int64))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as I64, which is not read"):
        load_model(folder)


def test_draft_layers_are_optional_as_a_whole(tmp_path: Path) -> None:
    assert len(load_model(write_random_checkpoint(tmp_path / "with")).mtp) == 1
    assert load_model(write_random_checkpoint(tmp_path / "none", num_nextn_predict_layers=0)).mtp == ()
    dropped = write_random_checkpoint(tmp_path / "dropped")
    tensors = load_file(dropped / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith("model.layers.3.")}
    save_file(kept, dropped / "model.safetensors")
    assert load_model(dropped).mtp == ()
    half = write_random_checkpoint(tmp_path / "half")
    rewrite(half, model__layers__3__eh_proj__weight=None)
    with pytest.raises(ModelError, match=r"lacks model\.layers\.3\.eh_proj\.weight"):
        load_model(half)
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    assert load_model(half).mtp == (), "those that the configuration does not name are ignored"


def test_what_is_missing_or_too_much_is_reported_together_but_for_harmless_extras(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path)
    rewrite(
        folder,
        model__norm__weight=None,
        model__layers__0__self_attn__surprise=torch.zeros(2),
        lm_head__weight=torch.zeros(3, 64),
    )
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    text = str(caught.value)
    assert "lacks model.norm.weight" in text
    assert "unexpected model.layers.0.self_attn.surprise" in text
    assert "lm_head.weight [3, 64] instead of [320, 64]" in text
    assert "\n" not in text
    folder = write_random_checkpoint(tmp_path, tie_word_embeddings=True)
    expected = logits(load_model(folder))
    rewrite(
        folder,
        lm_head__weight=torch.zeros(320, 64),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4),
    )
    assert torch.equal(logits(load_model(folder)), expected)


def test_broken_files(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(b"\x00" * 3)
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load_model(folder)
    shard.unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors of its index"):
        load_model(folder)
    for text in ("{}", "[" * 100_000):
        index.write_text(text)
        with pytest.raises(ModelError, match="cannot be read"):
            load_model(folder)
    index.unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \*\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "warp"}, "device 'warp' is unknown"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"dtype": "int3"}, "dtype 'int3' is not supported"),
    ],
)
def test_impossible_device_and_dtype(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    folder = write_random_checkpoint(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_model(folder, **arguments)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_cuda_without_cuda(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cuda is not available"):
        load_model(write_random_checkpoint(tmp_path), device="cuda")

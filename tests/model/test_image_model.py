"""Models on an image: the same bits as fresh ones, without a checkpoint; and the handling of invalid images."""

import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from serving.errors import ModelError
from serving.model import forms
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.forms import TorchForms
from serving.model.image import Image, address_of
from serving.model.image_bank import ImagePlan, assemble_from, plan_image, write_image
from serving.model.linear import Int8Linear, PlainHeads, PlainLinear, PrepackedLinear
from serving.model.loader import DtypeName, load_model, open_checkpoint
from serving.model.model import Model
from tests.model.image_shelf import ImageShelf
from tests.model.int8_checkpoint import round_to_int8
from tests.model.latent import latent_weights
from tests.model.paged import PagedRunner
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import CHOOSING, GPT_OSS, SHARED_CHOICE

TOKENS = torch.randint(6, 320, (40,), generator=torch.Generator().manual_seed(5)).tolist()

SHAPES: dict[str, dict[str, Any]] = {
    "draft layer": {},
    "draft layer with its own head": {"own_draft_head": True},
    "tied embedding": {"tie_word_embeddings": True},
    "tied embedding, no draft": {"tie_word_embeddings": True, "num_nextn_predict_layers": 0},
    "rope halves and bias": {"rope_interleave": False, "attention_bias": True},
    "no query latent": {"q_lora_rank": None, "attention_bias": True},
    "fp8": {"fp8": True},
    "experts with biases": GPT_OSS,
    "v2": {"model_type": "deepseek_v2", "topk_method": "greedy", "scoring_func": "softmax", "n_shared_experts": None},
    "indexers, fp8": CHOOSING | {"fp8": True},
    "a shared choice": SHARED_CHOICE,
    "larger, in shards": {"kind": "tiny", "shards": 2},
}


def outputs(model: Model) -> tuple[Tensor, ...]:
    """Logits of a prompt in two chunks and single tokens, and of each draft layer."""
    runner = PagedRunner(model)
    found = [runner.run("s", TOKENS, [20, 17, 1, 1, 1])]
    with torch.inference_mode():
        for layer in model.mtp:
            hidden = layer.embed[:9]
            found.append(layer.logits(layer.fuse(torch.cat((hidden, hidden), -1))))
    return tuple(found)


def assert_equal(model: Model, other: Model | tuple[Tensor, ...]) -> None:
    """Assert that both compute the same bits, or that a model computes the given ones."""
    expected = outputs(other) if isinstance(other, Model) else other
    assert all(torch.equal(one, two) for one, two in zip(outputs(model), expected, strict=True))


def remove_weights(folder: Path) -> None:
    """Make all weight files unreadable from now on."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def load_twice(folder: Path, shelf: ImageShelf, dtype: DtypeName) -> tuple[Model, Model]:
    """A model whose image is made, and one that finds it after the checkpoint was removed."""
    first = load_model(folder, dtype=dtype, images=shelf, version="1")
    remove_weights(folder)
    return first, load_model(folder, dtype=dtype, images=shelf, version="1")


HALVES = ("draft layer with its own head", "fp8", "larger, in shards")
"""Shapes that are also tested in bfloat16."""


@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, "float32") for shape in SHAPES), *((shape, "bfloat16") for shape in HALVES)]
)
def test_same_bits_as_a_fresh_model(tmp_path: Path, shape: str, dtype: DtypeName) -> None:
    folder = write_random_checkpoint(tmp_path, **SHAPES[shape])
    expected = outputs(load_model(folder, dtype=dtype))
    shelf = ImageShelf()
    for model in load_twice(folder, shelf, dtype):
        assert_equal(model, expected)
    assert len(shelf.stored) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["draft layer with its own head", "rope halves and bias", "tied embedding"])
def test_same_bits_in_int8(tmp_path: Path, shape: str, dtype: DtypeName) -> None:
    """Weights and scales are stored plainly in the image, a byte per element."""
    folder = round_to_int8(write_random_checkpoint(tmp_path, **SHAPES[shape]))
    expected = outputs(load_model(folder, dtype=dtype))
    shelf = ImageShelf()
    for model in load_twice(folder, shelf, dtype):
        assert_equal(model, expected)
        down = model.blocks[0].feed.down  # type: ignore[union-attr]
        assert isinstance(down, Int8Linear)
        start = address_of(shelf.only.data)
        for part in (down.weight, down.scale):
            assert part.data_ptr() in range(start, start + shelf.only.data.nbytes)


def test_weights_lie_on_an_image_that_has_no_tensor_twice_and_was_read_once(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    folder = write_random_checkpoint(tmp_path / "plain")
    shelf = ImageShelf()
    model = load_model(folder, images=shelf, progress=lambda done, total: calls.append((done, total)))
    start = address_of(shelf.only.data)
    span = range(start, start + shelf.only.data.nbytes)
    block = model.blocks[1]
    assert model.embed.data_ptr() in span
    absorbed = latent_weights(block).key_absorb
    assert isinstance(absorbed, PlainHeads)
    assert absorbed.weight.data_ptr() in span
    assert isinstance(model.head, PrepackedLinear)
    assert torch.ops.mkldnn.data_ptr(model.head._packed) in span
    assert calls == [(n + 1, calls[0][1]) for n in range(calls[0][1])]
    load_model(folder, images=shelf, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) == calls[0][1]
    tied = write_random_checkpoint(tmp_path / "tied", tie_word_embeddings=True, own_draft_head=True)
    other = ImageShelf()
    load_model(tied, images=other)
    places = [entry.offset for entry in Image(other.only.data).manifest.entries]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("shelf", [ImageShelf(full=True), ImageShelf(forgets=True)], ids=["full", "forgetful"])
def test_a_store_that_keeps_nothing_leaves_the_checkpoint(tmp_path: Path, shelf: ImageShelf) -> None:
    folder = write_random_checkpoint(tmp_path)
    assert_equal(load_model(folder, images=shelf), load_model(folder))


def flip_in_manifest(image: bytearray) -> None:
    image[200] ^= 1


def cut_off(image: bytearray) -> None:
    del image[-64:]


def other_magic(image: bytearray) -> None:
    image[0] ^= 1


@pytest.mark.parametrize("change", [flip_in_manifest, cut_off, other_magic])
def test_a_damaged_image_is_distrusted_and_the_checkpoint_read(
    tmp_path: Path, change: Callable[[bytearray], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_random_checkpoint(tmp_path)
    shelf = ImageShelf()
    fresh = load_model(folder, images=shelf)
    shelf.spoil(change)
    with caplog.at_level(logging.WARNING):
        assert_equal(load_model(folder, images=shelf), fresh)
    assert shelf.only.distrusted == 1
    assert "cannot be used" in caplog.text


def test_images_of_other_models_and_broken_checkpoints_are_refused(tmp_path: Path) -> None:
    shelf = ImageShelf()
    load_model(write_random_checkpoint(tmp_path / "a"), images=shelf)
    other = read_architecture(write_random_checkpoint(tmp_path / "b", hidden_size=32))
    same = read_architecture(tmp_path / "a")
    cpu, torch_forms = torch.device("cpu"), TorchForms(torch.device("cpu"))
    with pytest.raises(ModelError, match="another configuration or dtype"):
        assemble_from(shelf.only.data, other, torch.float32, cpu, torch_forms)
    with pytest.raises(ModelError, match="another configuration or dtype"):
        assemble_from(shelf.only.data, same, torch.bfloat16, cpu, torch_forms)
    assemble_from(shelf.only.data, same, torch.float32, cpu, torch_forms)
    folder = write_random_checkpoint(tmp_path, fp8=True)
    rewrite_without_scales(folder)
    shelf = ImageShelf()
    with pytest.raises(ModelError, match="has no _scale_inv"):
        load_model(folder, images=shelf)
    assert shelf.stored == []


def rewrite_without_scales(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if not name.endswith("_scale_inv")}, file)


def made(folder: Path, device: str) -> tuple[Architecture, memoryview, ImagePlan]:
    """An image of a checkpoint for a device."""
    config = read_architecture(folder)
    checkpoint, drafts = open_checkpoint(config, folder, None)
    with torch.inference_mode():
        plan = plan_image(config, checkpoint, drafts, torch.float32, TorchForms(torch.device(device)))
    memory = memoryview(mmap.mmap(-1, plan.nbytes))
    write_image(plan, config, checkpoint, memory)
    return config, memory, plan


@pytest.mark.parametrize("tied", [False, True])
def test_an_image_for_another_device_is_plain(tmp_path: Path, tied: bool) -> None:
    """The logic for CUDA, with the meta device in its place: plain tensors, copied, shared ones once."""
    folder = write_random_checkpoint(tmp_path, tie_word_embeddings=tied)
    config, memory, plan = made(folder, "cuda")
    assert plan.manifest.layouts == ()
    meta, cpu = torch.device("meta"), torch.device("cpu")
    model = assemble_from(memory, config, torch.float32, meta, TorchForms(meta))
    assert model.device.type == "meta"
    assert isinstance(model.head, PlainLinear)
    assert (model.head.weight is model.embed) == tied
    assert_equal(assemble_from(memory, config, torch.float32, cpu, TorchForms(cpu)), load_model(folder))


def test_an_image_is_of_one_number_of_threads(tmp_path: Path) -> None:
    """Some shapes are packed differently by many threads than by one; then no image is written under the wrong key."""
    folder = write_random_checkpoint(tmp_path)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        config, memory, plan = made(folder, "cpu")
        checkpoint, _ = open_checkpoint(config, folder, None)
        torch.set_num_threads(8)
        with pytest.raises(ModelError, match="not packed as planned"):
            write_image(plan, config, checkpoint, memory)
    finally:
        torch.set_num_threads(threads)


def test_a_changed_checkpoint_and_a_layout_that_torch_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_random_checkpoint(tmp_path / "a")
    other = write_random_checkpoint(tmp_path / "b", vocab_size=321)
    config, memory, plan = made(folder, "cpu")
    checkpoint, _ = open_checkpoint(read_architecture(other), other, None)
    with pytest.raises(ModelError, match="planned was"):
        write_image(plan, config, checkpoint, memory)

    def refuses(*_arguments: object) -> Tensor:
        raise RuntimeError("unknown layout")

    monkeypatch.setattr(forms, "packed_over", refuses)
    cpu = torch.device("cpu")
    with pytest.raises(ModelError, match="cannot be used by this torch"):
        assemble_from(memory, config, torch.float32, cpu, TorchForms(cpu))

"""Checkpoints that declare more than they hold, or link elsewhere: a clear error, and no allocation for them."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving.errors import ModelError
from serving.gateway.api.tokenizer import Tokenizer
from serving.model.checkpoint import Checkpoint, dequantise
from serving.model.config import read_architecture
from serving.model.loader import load_model
from serving.model.size import weight_bytes
from tests.model.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid checkpoint, loaded once, so that first-time imports and caches are done."""
    path = write_random_checkpoint(tmp_path_factory.mktemp("good") / "model")
    load_model(path)
    return path


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it; modifications of it must not cost memory."""
    path = shutil.copytree(good, tmp_path / "model")
    tracemalloc.start()
    yield path
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 4096}, r"means \d+ layers, and there are \d+ tensors"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 exceeds"),
        ({"n_routed_experts": 2**30, "n_group": 1, "topk_group": 1}, r"means \d+ experts, and there are \d+ tensors"),
        ({"num_nextn_predict_layers": 4096}, r"means \d+ draft layers, and there are \d+ tensors"),
        ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers = 1000000000 exceeds"),
    ],
)
def test_more_layers_than_tensors(folder: Path, values: dict[str, object], message: str) -> None:
    change(folder / "config.json", **values)
    with pytest.raises(ModelError, match=rf"config\.json.* {message}"):
        load_model(folder)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"])
def test_sizes_that_the_tensors_have_not(folder: Path, key: str) -> None:
    change(folder / "config.json", **{key: 2**31 - 1})
    with pytest.raises(ModelError, match="wrongly shaped"):
        load_model(folder)


@pytest.mark.parametrize("ids", [2**31, 10**30, [1, 10**30], [1.5], ["1"]])
def test_ends_that_are_no_tokens(folder: Path, ids: object) -> None:
    """They would fail every request: messages to engines hold 64 bits."""
    for file in ("generation_config.json", "config.json"):
        change(folder / file, eos_token_id=ids)
        with pytest.raises(ModelError, match=rf"eos_token_id = .*{'of generation' if file[0] == 'g' else ''}"):
            read_architecture(folder)
        (folder / "generation_config.json").write_text("{}")


def test_a_block_of_scales_larger_than_the_matrix() -> None:
    value = torch.ones(3, 5).to(torch.float8_e4m3fn)
    scaled = dequantise(value, torch.full((1, 1), 2.0), (2**40, 2**40))
    assert torch.equal(scaled, torch.full((3, 5), 2.0))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../b", "", 7, "\0"])
def test_an_index_names_files_of_the_folder_only(folder: Path, name: object) -> None:
    (folder.parent / "outside.safetensors").touch()
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"not a name of a file in the folder"):
        Checkpoint(folder)


def test_weights_behind_a_pipe_or_outside(folder: Path) -> None:
    os.mkfifo(folder / "more.safetensors")
    with pytest.raises(ModelError, match="a named pipe"):
        Checkpoint(folder)
    with pytest.raises(OSError, match="a named pipe"):
        weight_bytes(folder, 2)
    (folder / "more.safetensors").unlink()
    (folder.parent / "secret").write_bytes(b"x" * 100)
    (folder / "more.safetensors").symlink_to("../secret")
    with pytest.raises(ModelError, match="outside its folder"):
        Checkpoint(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_configuration_outside(folder: Path, file: str) -> None:
    text = (folder / file).read_text() if (folder / file).exists() else "{}"
    (folder.parent / "secret").write_text(text)
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to("../secret")
    with pytest.raises(ModelError, match="outside its folder"):
        read_architecture(folder)


def test_a_layer_number_of_thousands_of_digits(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({f"model.layers.{'9' * 5000}.x": torch.zeros(1)}, folder / "more.safetensors")
    with pytest.raises(ModelError, match="has unexpected"):
        load_model(folder)


def test_token_ids_beyond_all_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    whole = json.loads(Path("deploy/models/storyteller/tokenizer.json").read_text())
    whole["model"]["vocab"]["<|evil|>"] = 2**31
    path.write_text(json.dumps(whole))
    with pytest.raises(ModelError, match="has a token with id 2147483648"):
        Tokenizer.from_folder(folder)
    path.unlink()
    (folder.parent / "secret").write_text(json.dumps(whole))
    path.symlink_to("../secret")
    with pytest.raises(ModelError, match="outside its folder"):
        Tokenizer.from_folder(folder)

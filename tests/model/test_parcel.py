"""A model folder that is sent without its weights: what stays the same, and that no model with missing weights
computes.
"""

import shutil
import socket
from pathlib import Path

import pytest

from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.live.fingerprint import system_fingerprint
from serving.model import image, parcel
from serving.model.loader import load_model
from serving.model.parcel import lacks_weights, model_version, name_of, pack, unpack
from serving.model.size import weight_bytes
from tests.model.image_shelf import ImageShelf

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"


@pytest.fixture
def travelled(tmp_path: Path) -> Path:
    """The bundled model as another host has it."""
    folder = tmp_path / "there" / "model"
    unpack(pack(STORYTELLER), folder)
    return folder


def test_everything_but_the_weights_is_the_same_there_and_they_take_no_room(travelled: Path) -> None:
    assert model_version(travelled) == model_version(STORYTELLER)
    assert weight_bytes(travelled, 4) == weight_bytes(STORYTELLER, 4)
    here, there = (system_fingerprint(ServeConfig(ModelConfig(path))) for path in (STORYTELLER, travelled))
    assert here == there
    text = "Once upon a time"
    ours, theirs = (
        Tokenizer.from_folder(path).encode(text, add_special_tokens=False) for path in (STORYTELLER, travelled)
    )
    assert ours == theirs
    assert {path.name for path in travelled.iterdir()} == {
        *(path.name for path in STORYTELLER.iterdir() if path.suffix in (".json", ".safetensors")),
        parcel.MARK,
    }
    weights = travelled / "model.safetensors"
    assert weights.stat().st_size == (STORYTELLER / "model.safetensors").stat().st_size
    assert weights.stat().st_blocks * 512 < weights.stat().st_size / 10
    assert len(pack(STORYTELLER)) < 1 << 20
    assert name_of(pack(STORYTELLER)) == name_of(pack(STORYTELLER))


def test_without_weights_no_model_is_loaded_and_a_second_process_finds_the_folder_made(travelled: Path) -> None:
    assert lacks_weights(travelled)
    assert not lacks_weights(STORYTELLER)
    with pytest.raises(ModelError, match=rf"host {socket.gethostname()} has no {STORYTELLER}, and no memory server"):
        load_model(travelled)
    unpack(pack(STORYTELLER), travelled)
    assert [path.name for path in travelled.parent.iterdir()] == ["model"]


def test_weights_that_an_instance_elsewhere_puts_into_the_pool_are_waited_for(
    travelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = ImageShelf()
    load_model(STORYTELLER, images=shelf)
    late = ImageShelf()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            late.images |= shelf.images

    monkeypatch.setattr("serving.model.image.time.sleep", pause)
    model = load_model(travelled, images=late)
    assert model.config == load_model(STORYTELLER).config
    assert len(pauses) == 3


def test_weights_that_do_not_come_are_waited_for_no_longer(travelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "IMAGE_WAIT_S", 0.01)
    monkeypatch.setattr(image, "_IMAGE_PAUSE_S", 0.001)
    with pytest.raises(ModelError, match="no memory server offers its weights"):
        load_model(travelled, images=ImageShelf())


def test_what_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        pack(tmp_path / "nowhere")
    folder = shutil.copytree(STORYTELLER, tmp_path / "model")
    monkeypatch.setattr(parcel, "MOST_BYTES", 200_000)
    with pytest.raises(ModelError, match="copy it to every host"):
        pack(folder)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be created"):
        unpack(pack(tmp_path), tmp_path / "file" / "model")

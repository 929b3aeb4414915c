"""The written folder: shards, names, companion files, and that it appears completely or not at all."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import serving.model.checkpoint_writer as checkpoint_writer
from serving.errors import ConfigError
from serving.model.checkpoint import Int8Weight
from serving.model.checkpoint_writer import CheckpointWriter, refuse_used


def write(source: Path, out: Path, shard_bytes: int) -> None:
    with CheckpointWriter(out, shard_bytes) as writer:
        writer.add("a.weight", Int8Weight(torch.ones(4, 8, dtype=torch.int8), torch.full((4,), 0.5)))
        writer.add("b.weight", torch.ones(16, dtype=torch.bfloat16))
        writer.add("c.weight", torch.ones(16))
        assert writer.total_bytes == 32 + 16 + 32 + 64
        writer.finish({"key": 1}, {"report.md": "good"}, [source / "LICENSE"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "LICENSE").write_text("yours")
    return folder


def test_models_are_one_file_or_several_with_an_index(source: Path, tmp_path: Path) -> None:
    write(source, tmp_path / "out", 1 << 20)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["LICENSE", "config.json", "model.safetensors", "report.md"]
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["a.weight_scale"].shape == (4, 1)
    assert tensors["a.weight_scale"].dtype == torch.float32
    write(source, tmp_path / "large", 70)
    index = json.loads((tmp_path / "large" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 144
    assert index["weight_map"] == {
        "a.weight": "model-00001-of-00003.safetensors",
        "a.weight_scale": "model-00001-of-00003.safetensors",
        "b.weight": "model-00002-of-00003.safetensors",
        "c.weight": "model-00003-of-00003.safetensors",
    }
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "large" / file)


def test_an_interrupted_run_leaves_nothing_and_what_dead_ones_left_is_removed(tmp_path: Path) -> None:
    def interrupted() -> None:
        with CheckpointWriter(tmp_path / "out", 1) as writer:
            writer.add("a", torch.ones(4))
            writer.add("b", torch.ones(4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, 1):
        (tmp_path / f".out.{pid}.partial").mkdir()
    (tmp_path / ".other.1.partial").mkdir()
    with CheckpointWriter(tmp_path / "out"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {".out.1.partial", ".other.1.partial", f".out.{os.getpid()}.partial"}


def test_ctrl_c_just_after_its_folder_was_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path.mkdir

    def interrupted(self: Path, parents: bool = False) -> None:
        made(self, parents=parents)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), CheckpointWriter(tmp_path / "out"):
        pytest.fail("not entered")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_fills_up_meanwhile_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty one is taken
    with CheckpointWriter(tmp_path / "out") as writer:
        writer.add("a", torch.ones(4))
        (tmp_path / "out" / "other").write_text("mine")
        with pytest.raises(ConfigError, match=r"not empty.*the checkpoint is complete and is in"):
            writer.finish({}, {})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]
    (kept,) = tmp_path.glob(".out.*.partial")
    assert (kept / "model.safetensors").is_file(), "hours of work are not thrown away"


@pytest.mark.parametrize("linked", ["real", "nowhere"])
def test_a_link_is_followed(source: Path, tmp_path: Path, linked: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(linked)
    write(source, tmp_path / "out", 1 << 20)
    assert (tmp_path / linked / "config.json").is_file()
    assert (tmp_path / "out").is_symlink()


def test_what_cannot_be_replaced_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    for folder in (Path(), inside):
        with pytest.raises(ConfigError, match="or the current directory"):
            refuse_used(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "is_mount", lambda self: self == inside)
    with pytest.raises(ConfigError, match="is a mount"):
        refuse_used(inside)
    refuse_used(tmp_path / "new")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(checkpoint_writer, "save_file", full)

    def written() -> None:
        with CheckpointWriter(tmp_path / "out", 1) as writer:
            writer.add("a", torch.ones(4))
            writer.add("b", torch.ones(4))

    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\): make room"):
        written()
    assert list(tmp_path.iterdir()) == []

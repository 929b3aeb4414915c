"""Weights are identified by their content: in images, KV, fingerprints, upgrades, and on every host."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.config.upgrade import WEIGHTS, other_weights, upgrade_plan, values_of, version_of
from serving.gateway.live.fingerprint import system_fingerprint
from serving.launch.doctor import digest_of
from serving.launch.rollout import weights_of
from serving.model import parcel
from serving.model.loader import load_model
from serving.model.parcel import content_digest, model_version, pack, unpack
from tests.model.image_shelf import ImageShelf
from tests.model.random_checkpoint import write_random_checkpoint

PARTIES = ("kvcache", "prefill", "decode", "gateway", "autoscaler")
ONE_TIME = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two files with equal times, as in layers of container images."""
    return dated(write_random_checkpoint(tmp_path / "model", shards=2))


def dated(folder: Path) -> Path:
    """The folder, with equal times of its files."""
    for path in folder.iterdir():
        os.utime(path, ns=(ONE_TIME, ONE_TIME))
    return folder


def trained_further(folder: Path, to: Path, tensor: int = 0) -> Path:
    """A copy with one changed tensor, and equal names, sizes and times."""
    copy = shutil.copytree(folder, to)
    path = sorted(copy.glob("*.safetensors"))[-1]
    tensors = load_file(path)
    name = sorted(tensors)[tensor]
    tensors[name] = tensors[name] + torch.ones_like(tensors[name])
    save_file(tensors, path, metadata={"format": "pt"})
    assert path.stat().st_size == sorted(folder.glob("*.safetensors"))[-1].stat().st_size
    return dated(copy)


def config_of(folder: Path) -> ServeConfig:
    return ServeConfig(ModelConfig(folder))


def test_other_weights_of_equal_size_and_time_have_another_identity_everywhere(folder: Path, tmp_path: Path) -> None:
    other = trained_further(folder, tmp_path / "other")
    assert model_version(other) != model_version(folder)
    assert digest_of(other) != digest_of(folder)
    assert system_fingerprint(config_of(other)) != system_fingerprint(config_of(folder))
    assert weights_of(config_of(other)) != weights_of(config_of(folder))


def test_a_copy_is_the_same_model_whatever_its_times(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    assert model_version(copy) == model_version(folder)
    assert digest_of(copy) == digest_of(folder)
    assert system_fingerprint(config_of(copy)) == system_fingerprint(config_of(folder))


def test_weights_replaced_in_place_are_not_taken_from_the_old_image(folder: Path, tmp_path: Path) -> None:
    shelf = ImageShelf()
    before = load_model(folder, images=shelf)
    other = trained_further(folder, tmp_path / "other")
    shutil.rmtree(folder)
    other.rename(folder)
    after = load_model(folder, images=shelf)
    assert len(shelf.images) == 2
    assert before.config == after.config


@pytest.mark.parametrize("tensor", range(3))
def test_of_large_files_every_tensor_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: int
) -> None:
    other = trained_further(folder, tmp_path / "other", tensor)
    monkeypatch.setattr(parcel, "WHOLE_BYTES", 0)
    monkeypatch.setattr(parcel, "PAGE", 64)
    monkeypatch.setattr(parcel, "_known", {})
    assert content_digest(other) != content_digest(folder)


def test_of_large_files_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = list(parcel._pages(100, 100 + (1 << 30)))
    assert places[0] == 100
    assert places[-1] == 100 + (1 << 30) - parcel.PAGE
    assert len(places) == (1 << 30) // parcel.EVERY_BYTES + 1
    assert list(parcel._pages(7, 9)) == [7]
    monkeypatch.setattr(parcel, "WHOLE_BYTES", 0)
    for number, damaged in enumerate((b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x04" + bytes(7) + b'{"a"')):
        (tmp_path / f"{number}.safetensors").write_bytes(damaged + b"weights")
    before = content_digest(tmp_path)
    (tmp_path / "0.safetensors").write_bytes(b"Weights")
    assert content_digest(tmp_path) != before


def test_a_process_reads_a_file_once_for_as_long_as_it_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    of_file = parcel._read

    def counted(path: Path, size: int) -> bytes:
        read.append(path)
        return of_file(path, size)

    monkeypatch.setattr(parcel, "_known", {})
    monkeypatch.setattr(parcel, "_read", counted)
    model_version(folder)
    model_version(folder)
    assert len(read) == 2
    first = sorted(folder.glob("*.safetensors"))[0]
    shutil.copy2(first, folder / "new")
    (folder / "new").rename(first)  # another inode
    model_version(folder)
    assert read[2:] == [first]


def test_a_host_without_the_weights_knows_which_they_are(folder: Path, tmp_path: Path) -> None:
    other = trained_further(folder, tmp_path / "other")
    unpack(pack(folder), tmp_path / "there")
    unpack(pack(other), tmp_path / "other there")
    assert model_version(tmp_path / "there") == model_version(folder)
    assert model_version(tmp_path / "other there") == model_version(other) != model_version(folder)
    assert pack(tmp_path / "there") != pack(tmp_path / "other there")


def test_an_upgrade_replaces_who_holds_weights_and_all_together(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder)
    before = values_of(config) | {WEIGHTS: weights_of(config)}
    shutil.copytree(trained_further(folder, tmp_path / "other"), folder, dirs_exist_ok=True)
    after = values_of(config) | {WEIGHTS: weights_of(config)}
    plan = upgrade_plan(before, after, PARTIES)
    assert plan.restarts == dict.fromkeys(("prefill", "decode", "gateway"), (WEIGHTS,))
    moved = [party for party in PARTIES if version_of(party, before, "c") != version_of(party, after, "c")]
    assert moved == ["prefill", "decode", "gateway"]
    assert other_weights(before, after)
    assert not other_weights(before, before)
    assert not other_weights(values_of(config), after)
    named = replace(config, model=replace(config.model, version="mine"))
    assert weights_of(named) == "mine"
    assert weights_of(config_of(tmp_path / "nowhere")) == ""

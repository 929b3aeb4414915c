"""`cloudmatrix quantize` as a user meets it."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from serving.cli import main
from serving.tools.quantize.quantize_settings import STEP_NAMES
from serving.tools.quantize.structure import INT8_CLASSES
from tests.model.random_checkpoint import write_random_checkpoint


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The error line of a command."""
    assert main(["quantize", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cloudmatrix: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_with_text(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"Once there were {n} little frogs. " * 4}) + "\n" for n in range(40)))
    options = ["--text", text, "--tokens", "600", "--without", "clip", "search", "--keep", "head", "draft_fuse"]
    arguments = [
        "--model", original, "--out", tmp_path / "new" / "int8", "--report", tmp_path / "report.json", *options,
    ]  # fmt: skip
    assert main(["quantize", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert "without compensate" in captured.out
    assert "without clip" not in captured.out
    assert "Calibrated on random tokens" not in captured.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] == ["fold", "compensate"]
    assert report["kept"] == ["draft_fuse", "head"]
    assert report["text"] == "text.jsonl"
    assert report == json.loads((tmp_path / "new" / "int8" / "quantization.json").read_text())
    page = (tmp_path / "new" / "int8" / "quantization.md").read_text()
    for heading in ("Accuracy on held-out text", "Error of each operator class", "Tokens of each expert"):
        assert f"## {heading}" in page
    assert (tmp_path / "new" / "int8" / "tokenizer.json").read_bytes() == (original / "tokenizer.json").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["int8"]


def test_without_text_the_report_says_so(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "int8"
    options = ["--tokens", "128", "--no-trials", "--report", str(tmp_path / "report.md")]
    assert main(["quantize", "--model", str(original), "--out", str(out), *options]) == 0
    assert "random tokens" in capsys.readouterr().out
    assert (tmp_path / "report.md").read_text() == (out / "quantization.md").read_text()
    assert "No text was given" in (out / "quantization.md").read_text()


def test_a_used_folder_is_not_overwritten(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    assert "is not empty: give a new folder" in refused(capsys, "--model", original, "--out", tmp_path)
    assert "is not empty" in refused(capsys, "--model", original, "--out", tmp_path / "precious.txt")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_models_that_do_not_fit(quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "--model", quantised, "--out", tmp_path / "twice")
    assert "is INT8 already: give its original checkpoint" in message
    model = write_random_checkpoint(tmp_path / "model", vocab_size=270)  # fewer than the tokenizer's 276
    (tmp_path / "text.txt").write_text("You took the tea. " * 100)
    message = refused(capsys, "--model", model, "--out", tmp_path / "int8", "--text", tmp_path / "text.txt")
    assert "has more tokens than its config.json" in message


def test_other_mistakes(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "int8"
    both: list[str | Path] = ["--model", original, "--out", out]
    assert "does not exist" in refused(capsys, "--model", tmp_path / "nowhere", "--out", out)
    assert "cannot read the text" in refused(capsys, *both, "--text", tmp_path / "none.txt")
    (tmp_path / "short.txt").write_text("Once.")
    message = refused(capsys, *both, "--text", tmp_path / "short.txt")
    assert "calibration needs 64 tokens at least, and short.txt has " in message
    assert "give more text" in message
    assert "and --tokens is 9: give a larger --tokens" in refused(capsys, *both, "--tokens", "9")
    (tmp_path / "empty.txt").write_text("")
    assert "give more text" in refused(capsys, *both, "--text", tmp_path / "empty.txt")
    assert "--tokens 0" in refused(capsys, *both, "--tokens", "0")
    assert "--seed -5 must be between" in refused(capsys, *both, "--seed", "-5")
    assert "--tokens is 20" in refused(capsys, *both, "--tokens", "20")
    (tmp_path / "file").write_text("")
    assert "cannot be created" in refused(capsys, "--model", original, "--out", tmp_path / "file" / "int8")
    assert not out.exists()
    assert not list(tmp_path.glob(".*partial"))


def test_reports_and_help(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", original, "--out", tmp_path / "int8", "--tokens", "128", "--no-trials"]
    assert main(["quantize", *map(str, arguments), "--report", str(tmp_path / "no" / "report.md")]) == 4
    assert "cannot write" in capsys.readouterr().err
    assert (tmp_path / "int8" / "quantization.md").is_file()

    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    shown = capsys.readouterr().out
    assert all(operator.name in shown and operator.matrices in shown for operator in INT8_CLASSES)
    assert all(name in shown for name in STEP_NAMES)


@pytest.mark.parametrize("option", [["--keep", "norms"], ["--without", "luck"]])
def test_unknown_classes_and_steps(tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["quantize", "--model", "m", "--out", str(tmp_path / "int8"), *option])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_damaged_model_is_told(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(original, damaged)
    (file,) = damaged.glob("*.safetensors")
    tensors = load_file(file)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors[name][0, 0] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    message = refused(capsys, "--model", damaged, "--out", tmp_path / "int8", "--tokens", "128", "--no-trials")
    assert f"{damaged}: {name} has values that are not numbers" in message


def test_sigterm_leaves_nothing_behind(original: Path, tmp_path: Path) -> None:
    words = ["quantize", "--model", str(original), "--out", str(tmp_path / "int8"), "--tokens", "8192"]
    process = subprocess.Popen([sys.executable, "-m", "serving.cli", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".int8.*.partial")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert list(tmp_path.iterdir()) == []

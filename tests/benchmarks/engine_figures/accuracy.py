"""What INT8 costs in accuracy on the demo model, by `cloudmatrix evaluate` on text that it was never trained on."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.conditions import ROOT, STORYTELLER, progress
from tests.benchmarks.engine_figures.goals import PERPLEXITY, TOP_1, Row

_LIMIT_S = 1800.0
CALIBRATION_STORIES = 600


@dataclass(frozen=True, slots=True)
class Stories:
    """Texts of the demo model's kind.

    Args:
        held_out: never trained on; `.jsonl` with a document per line.
        calibration: beginning of its training set, as plain text.
    """

    held_out: Path
    calibration: Path


def write_stories(data: Path, folder: Path) -> Stories:
    """Split the corpus that the demo model was trained from, by the rule that its training used.

    Args:
        data: folder with `tinystories/`.
    Raises: FileNotFoundError without it.
    Effects: writes two files below `folder`.
    """
    spec = importlib.util.spec_from_file_location("storyteller_corpus", STORYTELLER / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    corpus = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = corpus  # its dataclasses look themselves up
    spec.loader.exec_module(corpus)
    train, held_out = corpus.load_stories(data / "tinystories" / "tinystories_merged.txt")
    stories = Stories(folder / "held-out.jsonl", folder / "calibration.txt")
    lines = [json.dumps({"text": text}) + "\n" for text in held_out]
    stories.held_out.write_text("".join(lines), encoding="utf-8")
    stories.calibration.write_text("\n\n".join(train[:CALIBRATION_STORIES]) + "\n", encoding="utf-8")
    return stories


def read_documents(path: Path) -> list[str]:
    """The held-out documents that `write_stories` wrote."""
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def compare(int8: Path, bf16: Path, text: Path) -> dict[str, Any]:
    """The report of `cloudmatrix evaluate` on an INT8 model against the one that it was made of.

    Raises: RuntimeError with its last words when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "serving.cli", "evaluate", "--model", str(int8), "--reference", str(bf16)]
        command += ["--text", str(text), "--dtype", "bfloat16", "--reference-dtype", "bfloat16", "--json", str(out)]
        progress(f"evaluating {int8.name} against {bf16.name}")
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        if done.returncode or not out.exists():
            raise RuntimeError(f"evaluate failed: {done.stdout.strip()[-500:]}")
        report: dict[str, Any] = json.loads(out.read_text())
        return report


def accuracy_rows(report: dict[str, Any]) -> list[Row]:
    """Both lines of the table."""
    text = report["texts"][0]
    compared = text["compared"]
    ratio, agreement = compared["ratio"], compared["agreement"]
    where = f"{text['documents']:,} documents, {text['tokens']:,} tokens"
    return [
        Row(PERPLEXITY, ratio["value"], f"{text['perplexity']['value']:.3f}{_interval(ratio)}; {where}"),
        Row(TOP_1, 100 * agreement["value"], f"KL {compared['divergence']['value']:.1e} nat per token; {where}"),
    ]


def missing_rows(reason: str) -> list[Row]:
    """Both lines when there is nothing to compare."""
    return [Row(PERPLEXITY, None, reason), Row(TOP_1, None, reason)]


def _interval(estimate: dict[str, Any]) -> str:
    low, high = estimate.get("low"), estimate.get("high")
    return "" if low is None or high is None else f", ratio's 95 % interval {low:.4f} to {high:.4f}"

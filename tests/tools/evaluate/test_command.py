"""`cloudmatrix evaluate`: what it prints, in words and as JSON, and how it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from loadgen.exit_codes import ExitCode
from serving.cli import main
from tests.model.random_checkpoint import write_random_checkpoint
from tests.tools.evaluate.task_folder import TASK, write_task

TEXT = "And the thing in the house is the other thing. " * 8
STORYTELLER = Path(__file__).parents[3] / "deploy" / "models" / "storyteller"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "held-[out].txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("other"), seed=1, dtype="bfloat16")


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words)])


def refused(capsys: pytest.CaptureFixture[str], *words: object, code: ExitCode = ExitCode.USAGE) -> str:
    """The error line of a command."""
    assert evaluate(*words) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def test_a_model_alone(capsys: pytest.CaptureFixture[str], checkpoint: Path, text: Path) -> None:
    assert evaluate("--model", checkpoint, "--text", text, "--threads", 1) == 0
    told = capsys.readouterr().out
    for words in ("Perplexity", "held-[out].txt", "bits per byte", "evaluated in"):
        assert words in told
    assert "reference" not in told


def test_a_model_beside_a_reference(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, other: Path, text: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second.jsonl"
    second.write_text('{"text": "the other text"}\n' * 3)
    out, task = tmp_path / "report.json", write_task(tmp_path / "tasks")
    words = ("--model", checkpoint, "--reference", other, "--text", text, second, "--tasks", task, "--json", out)
    assert evaluate(*words, "--context", 64, "--stride", 32, "--batch", 3, "--limit", 4) == 0
    told = capsys.readouterr().out
    for part in (
        "Against the reference",
        "KL mean, nat [95 %]",
        "all texts",
        "animals",
        "acc_norm ± stderr",
        "by the reference",
    ):
        assert part in told
    found: Any = json.loads(out.read_text())
    assert [one["name"] for one in found["texts"]] == ["held-[out].txt", "second.jsonl", "all texts"]
    first, more, whole = found["texts"]
    assert first["tokens"] + more["tokens"] == whole["tokens"]
    assert more["documents"] == 3
    ratio = whole["compared"]["ratio"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert first["compared"]["ratio"]["low"] is None, "too little text to tell, whatever the stride"
    assert found["settings"]["context"] == 64
    assert found["settings"]["dtype"] == "float32"
    task_found = found["tasks"][0]
    assert (task_found["questions"], task_found["reference"] is None) == (4, False)
    assert 0 <= task_found["same_choice"] <= 1


def test_the_way_of_decode_finds_the_same(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    found = []
    for chunk in (0, 1):
        out = tmp_path / f"{chunk}.json"
        assert evaluate("--model", checkpoint, "--text", text, "--max-tokens", 60, "--chunk", chunk, "--json", out) == 0
        found.append(json.loads(out.read_text())["texts"][0]["perplexity"]["value"])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_the_demo_model_knows_stories_and_little_else(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time, there was a little girl named Lily. She loved to play outside in the park.\n")
    path = write_task(tmp_path / "tasks", TASK.replace("Q: {{question}}\\nA:", "{{question}}"), questions=STORIES)
    out = tmp_path / "report.json"
    assert evaluate("--model", STORYTELLER, "--text", story, "--tasks", path, "--json", out) == 0
    found = json.loads(out.read_text())
    assert found["texts"][0]["perplexity"]["value"] < 5
    assert found["tasks"][0]["model"]["acc"] == 1


STORIES = [
    {"question": "Once upon a", "choices": ["time", "stone", "mouth"], "answer": 0},
    {"question": "Lily was sad. She started to", "choices": ["purple", "cry", "seven"], "answer": 1},
    {"question": 'Tom said, "Thank you,', "choices": ["under", 'mom!"', "the of"], "answer": 1},
]


def test_int8_cache_and_shared_weights(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    words = ("--model", checkpoint, "--reference", checkpoint, "--text", text, "--json", out)
    assert evaluate(*words) == 0
    assert json.loads(out.read_text())["texts"][0]["compared"]["divergence"]["value"] == 0
    assert evaluate(*words, "--kv-dtype", "int8") == 0
    assert 0 < json.loads(out.read_text())["texts"][0]["compared"]["divergence"]["value"] < 0.1


def test_doubts_are_told(capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"question": "x" * 40, "choices": ["a", "b"], "answer": answer} for answer in (0, 7)]
    assert evaluate("--model", checkpoint, "--tasks", write_task(tmp_path, questions=rows), "--context", 30) == 0
    told = capsys.readouterr().out
    assert "animals: 4 contexts were too long and were cut at the start" in told
    assert "animals: the answer of 1 questions is none of their choices" in told

    task = write_task(tmp_path, TASK.replace("metric: acc", "metric: acc\n  - metric: mcc"))
    assert evaluate("--model", checkpoint, "--tasks", task, "--limit", 2) == 0
    assert "animals: not computed: mcc" in capsys.readouterr().out


def test_a_damaged_model_gives_no_figures(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    (file,) = damaged.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.layers.0.input_layernorm.weight"].fill_(3e38)  # a number, and what it is multiplied with is none
    save_file(tensors, file, metadata={"format": "pt"})
    for words in (
        ("--model", damaged, "--text", text),
        ("--model", checkpoint, "--reference", damaged, "--text", text),
        ("--model", damaged, "--tasks", write_task(tmp_path / "tasks"), "--limit", 2),
    ):
        assert "not numbers (NaN): its weights are damaged" in refused(capsys, *words)


def test_mistakes_in_numbers_and_paths(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    assert "give held-out text with --text, or tasks with --tasks" in refused(capsys, "--model", checkpoint)
    common = ("--model", checkpoint, "--text", text)
    assert "--batch must be 1 or more, not 0" in refused(capsys, *common, "--batch", 0)
    assert "--threads 100000: 1024 at most" in refused(capsys, *common, "--threads", 100_000)
    assert "lower --batch" in refused(capsys, *common, "--batch", 100_000_000)
    assert "--max-tokens must be 1 or more, not -3" in refused(capsys, *common, "--max-tokens", -3)
    assert "--chunk must be 0 or more, not -1" in refused(capsys, *common, "--chunk", -1)
    assert "--context 100000 exceeds the" in refused(capsys, *common, "--context", 100_000)
    assert "--stride 9 is more than the context of 8" in refused(capsys, *common, "--context", 8, "--stride", 9)
    assert "holds no config.json" in refused(capsys, "--model", tmp_path, "--text", text)
    assert "holds no config.json" in refused(capsys, *common, "--reference", tmp_path / "nowhere")
    nowhere = tmp_path / "no" / "where.json"
    assert "cannot be written" in refused(capsys, *common, "--json", nowhere, code=ExitCode.OUTPUT)
    assert "cannot read the text" in refused(capsys, "--model", checkpoint, "--text", tmp_path / "nowhere.txt")
    assert "no task file or folder" in refused(capsys, "--model", checkpoint, "--tasks", tmp_path / "nowhere")
    assert "device 'abacus' is unknown" in refused(capsys, *common, "--device", "abacus")
    long = write_task(tmp_path, questions=[{"question": "x", "choices": ["a", "b" * 50], "answer": 0}])
    told = refused(capsys, "--model", checkpoint, "--tasks", long, "--context", 20)
    assert "animals.yaml, question 1: a continuation of 51 tokens does not fit a context of 20" in told


def test_a_file_that_cannot_be_written_after_all(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, text: Path
) -> None:
    assert evaluate("--model", checkpoint, "--text", text, "--max-tokens", 20, "--json", "/dev/full") == ExitCode.OUTPUT
    assert "cannot write /dev/full: No space left" in capsys.readouterr().err


def test_models_that_do_not_belong_together(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    common = ("--model", checkpoint, "--text", text, "--reference")
    assert "different tokenizers" in refused(capsys, *common, STORYTELLER)
    wider = write_random_checkpoint(tmp_path / "wider", vocab_size=400)
    shutil.copy(checkpoint / "tokenizer.json", wider)
    assert "the model has 320 logits and the reference 400" in refused(capsys, *common, wider)

    mixed = tmp_path / "mixed"
    shutil.copytree(checkpoint, mixed)
    shutil.copy(STORYTELLER / "tokenizer.json", mixed)
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time")
    assert "but the model has 320: they do not match" in refused(capsys, "--model", mixed, "--text", story)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluate("--help")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for words in ('{"text": "..."}', "--reference DIR --kv-dtype int8", "doc_to_choice:", "95 in 100"):
        assert words in told

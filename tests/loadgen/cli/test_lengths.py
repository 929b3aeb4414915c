"""Requested and sent lengths are reported next to each other, for every workload."""

import html
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.cli.bench import USED_BY
from tests.loadgen.cli.conftest import Run
from tests.loadgen.workload.counters import raw_byte_level

Sent = Callable[..., dict]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json, without which lengths would be estimates, since the server's count is unknown."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(raw_byte_level().to_str())
    return path


@pytest.fixture
def sent(loadgen_run: Run, tokenizer: Path) -> Sent:
    """The result of a run of eight requests."""

    def run(*flags: str, tokenizer: str = str(tokenizer)) -> dict:
        usual = ("--num-prompts", "8", "--workers", "1", "--seed", "1", "--out", "run", "--tokenizer", tokenizer)
        assert loadgen_run(*usual, *flags) == 0
        return json.loads(Path("run/result.json").read_text())["loadgen"]

    return run


def test_what_was_shortened_is_told_in_console_json_and_report(sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    own = sent("--input-len", "uniform:5-400", "--output-len", "uniform:2-60", "--max-model-len", "64")
    side = own["lengths"]["input"]
    assert 0 < side["shortened"] <= side["requests"] == 8
    assert side["asked_mean"] > side["sent_mean"]
    assert side["asked_max"] > side["sent_max"] == 63
    assert own["lengths"]["output"]["shortened"] > 0
    [prompts] = [text for text in own["warnings"] if f"{side['shortened']} of 8 prompts were shortened" in text]
    assert any("answers were shortened" in text for text in own["warnings"])
    printed = " ".join(capsys.readouterr().out.split())
    page = html.unescape(Path("run/report.html").read_text())
    for text in (prompts.split(" (")[0], f"{side['asked_mean']:,.1f}", f"{side['sent_mean']:,.1f}"):
        assert text in printed
        assert text in page
    lines = [json.loads(line) for line in Path("run/requests.jsonl").read_text().splitlines()]
    assert sum(line["asked_input_tokens"] is not None for line in lines) == side["shortened"]


def test_lengths_as_asked_for_raise_no_doubts(sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    own = sent("--input-len", "59", "--max-model-len", "64")
    assert own["lengths"]["input"] == {
        "requests": 8, "shortened": 0, "lengthened": 0, "asked_mean": 59.0, "asked_max": 59, "sent_mean": 59.0,
        "sent_max": 59,
    }  # fmt: skip
    assert own["lengths"]["output"]["sent_mean"] == 5
    assert not any(word in " ".join(own["warnings"]) for word in ("shortened", "raised", "left out"))
    assert "asked for / sent" not in capsys.readouterr().out


def test_lengths_without_a_tokenizer_and_turns_that_do_not_fit(sent: Sent) -> None:
    own = sent("--input-len", "uniform:5-400", "--max-model-len", "64", tokenizer="none")
    side = own["lengths"]["input"]
    assert side["shortened"] == side["requests"] > 0
    assert side["asked_mean"] > 64 > side["sent_max"]
    assert any("prompts were shortened" in text for text in own["warnings"])

    shutil.rmtree("run")
    own = sent("--turns", "4", "--max-model-len", "50")  # 16 + 5 tokens a turn: two of them fit
    assert own["turns_left_out"] == 2 * 8
    assert any("16 turns of 8 conversations were left out" in text for text in own["warnings"])


def test_data_sets_and_their_repetitions(sent: Sent) -> None:
    rows = "".join(f"2023-11-16 18:15:46.{index},{40 * index},0\n" for index in range(1, 5))
    Path("azure.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    own = sent(
        *("--dataset-name", "azure", "--dataset-path", "azure.csv"),
        *("--max-model-len", "100", "--concurrency", "2", "--repeats", "2"),
    )
    assert own["lengths"]["input"]["shortened"] == 2 * 2  # 120 and 160 of four, twice
    assert (own["lengths"]["output"]["lengthened"], own["lengths"]["output"]["asked_mean"]) == (8, 0)
    assert any("--length-scale" in text for text in own["warnings"])
    assert any("4 of 4 answers were raised to the least that can be sent" in text for text in own["warnings"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tenants", "3"), "--tenants has no effect with --dataset-name random"),
        (("--length-scale", "0.5"), "--length-scale has no effect with --dataset-name random"),
        (("--dataset-path", "nowhere"), "--dataset-path has no effect with --dataset-name random"),
        (("--think-time", "0.01"), "give --turns"),
        (("--dataset-name", "shared-prefix", "--random-prefix-len", "9"), "--random-prefix-len has no effect"),
        (("--dataset-name", "custom", "--dataset-path", "custom.jsonl", "--turns", "2"), "--turns has no effect"),
        (("--extra-body", '{"max_tokens": 5}'), "sets max_tokens in every request"),
    ],
)
def test_flags_without_effect_are_named(sent: Sent, flags: tuple[str, ...], told: str) -> None:
    Path("custom.jsonl").write_text('{"prompt": "What is a load generator?"}\n')
    assert any(told in warning for warning in sent(*flags)["warnings"])


def test_flags_in_use_are_not_named(sent: Sent) -> None:
    own = sent("--random-prefix-len", "4", "--turns", "2", "--think-time", "0.001", "--temperature", "1")
    assert "effect" not in " ".join(own["warnings"])
    assert all(USED_BY.values())

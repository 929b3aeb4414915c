"""Rows from runs of loadgen, from client-side measurements, in the form that the cost model expects."""

import argparse
from array import array
from pathlib import Path

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.engine_profile import load_engine
from hardware.cost.trust import expected
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.run_folder import REQUESTS, RESULT, RunFolder
from serving.cli import command_parser
from serving.cli.cost_fit import rows_of_runs
from serving.errors import ConfigError


def record(index: int, started_s: float, first_s: float, tpot_s: float, tokens: int = 11) -> RequestRecord:
    chunks = array("d", [first_s + n * tpot_s for n in range(tokens)])
    return RequestRecord(
        index=index, outcome=RequestOutcome.OK, started_s=started_s, ended_s=chunks[-1], chunk_times=chunks.tobytes(),
        input_tokens=200, output_tokens=tokens, cached_tokens=50,
    )  # fmt: skip


def run(folder: Path, records: list[RequestRecord]) -> None:
    with RunFolder(folder) as writer:
        writer.append(records)
    (folder / RESULT).write_text("{}", encoding="utf-8")


def alone(folder: Path) -> None:
    """Six requests one after the other: 50 ms to the first token, 20 ms a token."""
    run(folder, [record(n, n * 1.0, n * 1.0 + 0.05, 0.02) for n in range(6)])


def together(folder: Path) -> None:
    """Eight requests at once: 30 ms a token; all wait for their first."""
    run(folder, [record(n, 0.0, 0.4, 0.03) for n in range(8)])


def test_requests_one_after_the_other(tmp_path: Path) -> None:
    alone(tmp_path / "one")
    decode, prefill = rows_of_runs(tmp_path / "one", dies=4, per_npu=2).rows
    assert decode.values == pytest.approx(
        {"dies": 4, "batch_per_npu": 0.5, "context_tokens": 205.5, "drafts": 0, "acceptance": 0, "tpot_ms": 20}
    )
    assert prefill.values == pytest.approx(
        {"dies": 4, "tokens_per_die": 37.5, "prompt_tokens": 200, "cached_share": 0.25, "step_ms": 48}
    )


def test_a_step_is_no_less_than_half_of_the_time_to_the_first_token(tmp_path: Path) -> None:
    run(tmp_path / "fast", [record(n, n * 1.0, n * 1.0 + 0.003, 0.02) for n in range(6)])
    _, prefill = rows_of_runs(tmp_path / "fast", dies=4, per_npu=2).rows
    assert prefill.values["step_ms"] == pytest.approx(1.5)


def test_requests_that_wait_say_nothing_of_prefill(tmp_path: Path) -> None:
    together(tmp_path / "eight")
    (decode,) = rows_of_runs(tmp_path / "eight", dies=2, per_npu=2).rows
    assert decode.values["batch_per_npu"] == pytest.approx(8)
    assert decode.values["tpot_ms"] == pytest.approx(30)


def test_a_folder_of_runs_and_its_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone(tmp_path / "one")
    together(tmp_path / "eight")
    measured = rows_of_runs(tmp_path, dies=2, per_npu=2)
    assert [row.phase for row in measured.rows] == ["decode", "decode", "prefill"]
    fit(str(tmp_path), "--dies", "2")
    text = capsys.readouterr().out
    assert "decode: 2 rows, 1 parameter, 1 degree of freedom" in text
    assert "prefill: 1 row" in text


def test_a_processor_as_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = str(Path(__file__).parents[2] / "examples" / "cpu-device.toml")
    alone(tmp_path / "one")
    fit(str(tmp_path), "--dies", "2", "--device", device, "--out", str(tmp_path / "mine.toml"))
    assert "x the values of the device file" in capsys.readouterr().out
    told = expected(CostModel(load_device(device), engine=load_engine(str(tmp_path / "mine.toml"))))
    assert told.startswith("decode: within 10 % inside of batch 1 per NPU, context 205.5"), told
    assert "; prefill: within 15 % inside of new tokens per die 75, prompts 200" in told


def test_runs_judge_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone(tmp_path / "fit" / "one")
    together(tmp_path / "other" / "eight")
    mine = str(tmp_path / "mine.toml")
    fit(str(tmp_path / "fit"), "--dies", "2", "--out", mine)
    capsys.readouterr()
    words = ["cost", "--judge", str(tmp_path / "other"), "--engine", mine]
    arguments = command_parser("cost").parse_args([*words, "--dies", "2"])
    arguments.run(arguments)
    text = capsys.readouterr().out
    assert "eight: decode" in text
    assert "TPOT 30 ms" in text
    arguments = command_parser("cost").parse_args(words)
    with pytest.raises(ConfigError, match=r"--judge .*: add --dies N"):
        arguments.run(arguments)


def fit(*words: str) -> None:
    arguments: argparse.Namespace = command_parser("cost").parse_args(["cost", "--fit", *words])
    arguments.run(arguments)


def test_too_little_and_wrong_flags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no result\.json; run `loadgen run --out"):
        rows_of_runs(tmp_path, 2, 2)
    run(tmp_path / "few", [record(n, n * 1.0, n + 0.1, 0.02) for n in range(3)])
    with pytest.raises(ConfigError, match="no run has 5 answers"):
        rows_of_runs(tmp_path, 2, 2)
    with pytest.raises(ConfigError, match="add --dies N"):
        fit(str(tmp_path))
    (tmp_path / "few" / REQUESTS).write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"requests\.jsonl:1: not a request record"):
        rows_of_runs(tmp_path, 2, 2)
    csv = tmp_path / "measured.csv"
    csv.write_text("phase,dies,batch_per_npu,context_tokens,tpot_ms\ndecode,32,32,3000,60\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows of .* contain it"):
        fit(str(csv), "--dies", "2")

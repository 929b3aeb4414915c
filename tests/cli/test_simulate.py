"""`cloudmatrix simulate`, from the command line: what it prints and writes, and how it refuses."""

import json
from pathlib import Path

import pytest

from loadgen.exit_codes import ExitCode
from serving.cli import main
from tests.virtual.core.case import CONFIG

CHAOS = CONFIG.parent / "chaos"
LOAD = ["--poisson", "4", "--duration", "2", "--prompt", "1000", "--output", "10"]


def run(*flags: str) -> int:
    return main(["simulate", "--config", str(CONFIG), "--quiet", *flags])


def test_a_summary_two_files_and_the_same_json_for_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "run"
    assert run(*LOAD, "--seed", "3", "--out", str(folder), "--requests", "--check") == 0
    told = capsys.readouterr()
    for word in ("deepseek-r1", "goodput", "TTFT", "prefill", "decode", "RDMA"):
        assert word in told.out
    assert "real time" in told.err
    assert f"wrote {folder / 'report.html'}" in told.err
    result = json.loads((folder / "result.json").read_bytes())
    assert result["schema"].startswith("cloudmatrix-simulation/")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "One decode layer" in page
    assert run(*LOAD, "--seed", "3", "--requests", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["seed"], again) == (3, result)


def test_a_trace_on_two_supernodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    line = {"input_length": 1024, "output_length": 10}
    lines = [{"timestamp": 100 * n, **line, "hash_ids": [n % 3, 100 + n]} for n in range(12)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert run("--trace", str(trace), "--supernodes", "2", "--processes", "1", "--rate", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["supernodes"] == 2
    assert result["summary"]["requests"] == 12


def test_faults_are_drawn_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*LOAD, "--fault-rate", "1e5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["faults"]
    schedule = tmp_path / "faults.toml"
    schedule.write_text(
        '[[fault]]\nat_s = 1.0\nkind = "straggler"\ntarget = "n12.npu0.die0"\nduration_s = 3.0\nfactor = 2.0\n',
        encoding="utf-8",
    )
    assert run(*LOAD, "--faults", str(schedule), "--json") == 0
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault["kind"] == "straggler"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        (["--poisson", "4"], "--poisson needs --duration"),
        (["--poisson", "0", "--duration", "5"], "must be above 0"),
        (["--poisson", "4", "--duration", "5", "--prompt", "1000000"], "below 131072 tokens ([engine] max_model_len)"),
        ([*LOAD, "--faults", "none.toml"], "none.toml"),
        (
            [*LOAD, "--faults", f"{CHAOS}/flood.toml"],
            "simulate cannot do [[faults]][0] flood. It can do kill",
        ),
        ([*LOAD, "--fault-rate", "-1"], "negative"),
        ([*LOAD, "--supernodes", "0"], "--supernodes 0: at least 1"),
        ([*LOAD, "--processes", "0"], "--processes 0: at least 1"),
        ([*LOAD, "--reuse", "2"], "--reuse 2: a share from 0 to 1"),
        ([*LOAD, "--rate", "2"], "--rate goes with --trace"),
        (["--trace", "any.jsonl", "--prompt", "5"], "--prompt goes with --poisson"),
        (["--trace", "any.jsonl", "--limit", "0"], "--limit 0: at least 1"),
    ],
)
def test_a_mistake_is_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("cloudmatrix: ")
    assert told.count("\n") == 1


def test_a_folder_that_cannot_be_is_told_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(*LOAD, "--out", str(tmp_path / "file" / "run")) == ExitCode.OUTPUT
    told = capsys.readouterr()
    assert told.err.startswith("cloudmatrix: cannot write into ")
    assert told.out == ""


def test_the_first_failure_is_told_and_no_column_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1000000,9\n", encoding="utf-8")
    assert run("--trace", str(trace)) == 0
    told = capsys.readouterr().out
    assert "first that failed: " in told
    assert "at most 131072 fit this instance" in told
    assert "peak KV" in told


def test_faults_come_from_a_file_or_from_chance() -> None:
    with pytest.raises(SystemExit) as left:
        run(*LOAD, "--faults", "a.toml", "--fault-rate", "1")
    assert left.value.code == 2


def test_a_bad_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n', encoding="utf-8")
    assert run("--trace", str(trace)) == 2
    told = capsys.readouterr().err
    assert f"{trace}" in told
    assert told.count("\n") == 1

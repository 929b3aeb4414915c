"""Every user error is reported in one line with a remedy, and has its own exit status."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from loadgen import run_folder
from loadgen.cli.main import main
from loadgen.result import RunResult
from loadgen.selftest.ceiling import BlastServer, start_blast_server
from tests.loadgen.cli.conftest import Run


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr."""
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--request-rate", "4", "--rate-steps", "2:3s"), "contradict"),
        (("--sweep", "rate", "--find-max", "rate"), "contradict"),
        (("--find-max", "rate"), "needs SLOs"),
        (("--sweep", "rate", "--request-rate", "4"), "leave out --request-rate"),
        (("--sweep", "concurrency", "--concurrency", "4"), "leave out --concurrency"),
        (("--sweep", "concurrency", "--request-rate", "4"), "leave out rates"),
        (("--sweep", "rate", "--arrival", "trace"), "leave out --arrival"),
        (("--slo", "ttfb=1s"), "ttfb"),
        (("--slo", "e2e=1s,tpot=1s", "--no-stream"), "tpot needs a stream"),
        (("--input-len", "many"), "no length"),
        (("--input-len", "0"), "the least is 1"),
        (("--input-len", "3000", "--max-model-len", "2048"), "3000 tokens"),
        (("--output-len", "3000", "--max-model-len", "2048"), "takes 2048 in all"),
        (("--random-prefix-len", "2040", "--max-model-len", "2048"), "2056 tokens"),
        (("--output-len", "uniform:5-9", "--random-range-ratio", "0.5"), "write uniform:LOW-HIGH instead"),
        (("--dataset-name", "mooncake"), "needs --dataset-path"),
        (("--dataset-name", "mooncake", "--dataset-path", "nowhere.jsonl"), "no such file"),
        (("--prompt-kind", "ids", "--backend", "openai-chat"), "--backend openai"),
        (("--metrics-url", "http://bob:secret@host/metrics"), "no user name or password"),
        (("--endpoint", "v1/completions"), "begins with /"),
        (("--arrival", "trace"), "data set with times"),
        (("--arrival", "constant"), "needs --request-rate"),
        (("--arrival", "poisson", "--request-rate", "1", "--burstiness", "2"), "--arrival gamma"),
        (("--ramp-up-strategy", "linear"), "--ramp-up-start-rps"),
        (("--ramp-up-start-rps", "1", "--ramp-up-end-rps", "3"), "--ramp-up-strategy"),
        (("--sweep-values", "1,2"), "without --sweep"),
        (("--burstiness", "2"), "shapes the gaps"),
        (("--concurrency", "2", "--burstiness", "0.5"), "shapes the gaps"),
        (("--trace-from", "5s"), "belong to a replay"),
        (("--request-rate", "50", "--rate-scale", "2"), "belong to a replay"),
        (("--disconnect-share", "0.6", "--timeout-share", "0.6"), "sum to at most 1"),
        (("--tokenizer", "nowhere"), "no tokenizer"),
        (("--header", "X=a\nb"), "plain text"),
    ],
)
def test_wrong_flags(loadgen_run: Run, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str) -> None:
    assert loadgen_run(*flags) == 2
    assert words in complaint(capsys)


def test_a_folder_without_a_run(loadgen_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        loadgen_run("--request-rate", "-1")
    assert refused.value.code == 2
    capsys.readouterr()
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "result.json" in complaint(capsys)
    assert main(["trace", "record", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path)]) == 2


def test_a_server_that_cannot_be_used(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert loadgen_run(url="http://127.0.0.1:9") == 3
    assert "127.0.0.1:9" in complaint(capsys)
    assert loadgen_run("--model", "other") == 3
    assert "blast" in complaint(capsys)

    with start_blast_server("paced", api_key="k-9f3c1e-untold") as closed:
        assert loadgen_run(url=closed.url) == 3
        assert "--api-key" in complaint(capsys)
        assert loadgen_run("--api-key", "k-9f3c1e-untold", "--num-prompts", "2", "--out", "run", url=closed.url) == 0
    assert "k-9f3c1e-untold" not in Path("run/result.json").read_text()


def test_results_are_neither_lost_nor_overwritten(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert loadgen_run("--out", "file/run") == 4
    assert "cannot write" in complaint(capsys)
    assert loadgen_run("--num-prompts", "1", "--out", "run") == 0
    capsys.readouterr()
    assert loadgen_run("--num-prompts", "1", "--out", "run") == 4
    assert "already holds" in complaint(capsys)


def test_an_interrupted_run_keeps_what_it_has(server: BlastServer, tmp_path: Path) -> None:
    status, output, result = ended_early(server, tmp_path, lambda pid: os.kill(pid, signal.SIGINT))
    assert status == 130, output
    assert "interrupted" in output.lower()
    assert result.outcomes["ok"] > 0


def test_a_run_that_loses_a_worker_is_our_error_and_keeps_what_it_has(server: BlastServer, tmp_path: Path) -> None:
    def kill_worker(pid: int) -> None:
        [worker] = [one for one in psutil.Process(pid).children() if "loadgen.driver.worker" in " ".join(one.cmdline())]
        worker.kill()

    status, output, result = ended_early(server, tmp_path, kill_worker)
    assert status == 1, output
    assert any("was lost" in warning for warning in result.warnings)
    assert result.outcomes["ok"] > 0


def ended_early(server: BlastServer, folder: Path, end: Callable[[int], None]) -> tuple[int, str, RunResult]:
    """A closed loop of a minute, ended (by pid) after its first responses: exit status, output, result."""
    command = [sys.executable, "-m", "loadgen", "run", "--url", server.url, "--concurrency", "2", "--duration", "60s"]
    command += ["--output-len", "5", "--drain", "1s", "--out", str(folder / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        requests = folder / "run" / "requests.jsonl"
        deadline = time.monotonic() + 60
        while not (requests.exists() and requests.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        end(process.pid)
        output, _ = process.communicate(timeout=60)
    result = run_folder.read_result(folder / "run")
    assert result.interrupted
    return process.returncode, output, result


def test_the_command_starts_at_once() -> None:
    """It imports neither torch nor transformers nor any module of the server."""
    code = (
        "import sys, loadgen.cli.run_command, loadgen.cli.compare_command, loadgen.cli.trace_command;"
        "print([name for name in ('torch', 'transformers', 'ray', 'serving', 'hardware', 'tokenizers') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""`loadgen run` from the command line to the files, against a real server in a process of its own."""

import json
import re
from pathlib import Path

import pytest

from loadgen import run_folder
from loadgen.cli.main import main
from loadgen.record import RequestOutcome
from loadgen.server.scrape import Scraper
from tests.loadgen.cli.conftest import Run


def result_of(folder: str) -> dict:
    """`result.json` as any script reads it."""
    return json.loads(Path(folder, "result.json").read_text())


@pytest.mark.real_time
def test_closed_loop(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert loadgen_run("--concurrency", "4", "--num-prompts", "20", "--num-warmups", "4", "--out", "run") == 0
    flat = result_of("run")
    own = flat["loadgen"]
    assert flat["completed"] == own["outcomes"]["ok"] == 20
    assert own["warmup_requests"] == 4
    assert own["schema"] == "loadgen-result/1"
    assert 4 <= flat["mean_ttft_ms"] < 200
    assert own["metrics"]["tpot"]["mean"] == pytest.approx(0.005, rel=0.5)
    assert own["peak_concurrency"] <= 4
    records = list(run_folder.read_records(Path("run")))
    assert len(records) == 24
    assert {record.outcome for record in records} == {RequestOutcome.OK}
    assert len(run_folder.read_bodies(Path("run"))) == 24
    assert "<html" in Path("run/report.html").read_text()[:200].lower()
    printed = capsys.readouterr().out
    assert "Successful requests" in printed
    assert "TTFT" in printed


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-concurrency", "3", "--request-rate", "inf", "--num-prompts", "12", "--no-stream"),
        ("--concurrency", "3", "--num-prompts", "6", "--repeats", "2"),
    ],
)
def test_peaks_lie_between_the_mean_and_the_cap(
    loadgen_run: Run, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the result's keys, its time line, the console, and the report's words and chart."""
    assert loadgen_run(*flags, "--workers", "2", "--out", "run") == 0
    found = json.loads(Path("run/result.json").read_text())
    own = found["loadgen"]
    assert 1 <= found["max_concurrent_requests"] <= 3
    assert own["mean_concurrency"] <= found["max_concurrent_requests"]
    assert found["max_output_tokens_per_s"] >= found["output_throughput"] > 0
    assert max(point["open_peak"] for point in own["timeline"]) <= found["max_concurrent_requests"]
    mean, peak = numbers_after(r"Concurrent requests, mean / peak\D*([\d.]+) / (\d+)", capsys.readouterr().out)
    assert mean <= peak <= 3
    report = Path("run/report.html").read_text()
    peak, mean = numbers_after(r"At most (\d+) were open at once, ([\d.]+) on average", report)
    assert mean <= peak <= 3
    charts = re.findall(r'"name":"peak","values":\[([^\]]*)\]', report)
    assert len(charts) == 1
    assert all(float(value) <= 3 for values in charts for value in values.split(","))


def numbers_after(pattern: str, text: str) -> tuple[float, float]:
    found = re.search(pattern, text)
    assert found is not None, text[-2000:]
    return float(found[1]), float(found[2])


def test_seeds_and_sessions(loadgen_run: Run) -> None:
    for name in ("a", "b"):
        assert loadgen_run("--request-rate", "50", "--num-prompts", "10", "--seed", "7", "--out", name) == 0
    assert run_folder.read_bodies(Path("a")) == run_folder.read_bodies(Path("b"))
    times = [sorted(record.intended_s for record in run_folder.read_records(Path(name))) for name in ("a", "b")]
    assert times[0] == times[1]
    assert loadgen_run("--request-rate", "50", "--num-prompts", "10", "--out", "c") == 0
    assert run_folder.read_bodies(Path("a")) != run_folder.read_bodies(Path("c"))

    flags = ("--backend", "openai-chat", "--turns", "3", "--num-prompts", "2", "--concurrency", "2", "--out", "run")
    assert loadgen_run(*flags) == 0
    bodies = run_folder.read_bodies(Path("run"))
    assert set(bodies) == {(index, turn) for index in range(2) for turn in range(3)}
    roles = [message["role"] for message in json.loads(bodies[0, 2])["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("flags", "indices"), [((), [2, 3, 4]), (("--no-sample-texts",), []), (("--no-save-prompts",), [])]
)
def test_sample_texts_are_there_unless_nobody_wants_them(
    loadgen_run: Run, flags: tuple[str, ...], indices: list[int]
) -> None:
    assert loadgen_run("--num-prompts", "6", "--num-warmups", "2", "--npus", "4", "--out", "run", *flags) == 0
    result = run_folder.read_result(Path("run"))
    assert result.npus == 4
    assert [sample.index for sample in result.samples] == indices
    assert all(sample.prompt and sample.answer for sample in result.samples)
    assert all(record.text is None for record in run_folder.read_records(Path("run")))
    report = Path("run/report.html").read_text()
    assert ("Sample texts" in report) == bool(indices)
    assert "Answer lengths" in report


def test_sweeps(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--sweep", "rate", "--sweep-values", "20,60", "--num-prompts", "15", "--slo", "ttft=2s,tpot=1s")
    assert loadgen_run(*flags, "--out", "sweep") == 0
    sweep = run_folder.read_sweep(Path("sweep"))
    assert [point.value for point in sweep.points] == [20, 60]
    assert sweep.best == 60
    assert Path("sweep/point-02-rate-60/result.json").exists()
    assert Path("sweep/report.html").exists()
    assert sweep.points[0].result.seed != sweep.points[1].result.seed
    assert "rate" in capsys.readouterr().out

    own = ("--sweep", "concurrency", "--sweep-points", "3", "--num-prompts", "6", "--no-report", "--out", "own")
    assert loadgen_run(*own) == 0
    values = [point.value for point in run_folder.read_sweep(Path("own")).points]
    assert values[0] == 1
    assert len(values) == 3


def test_repetitions_and_several_answers(loadgen_run: Run) -> None:
    assert loadgen_run("--concurrency", "2", "--num-prompts", "6", "--repeats", "3", "--out", "run") == 0
    own = result_of("run")["loadgen"]
    assert len(own["repetitions"]) == 3
    assert own["requests"] == 18
    assert own["metrics"]["ttft"]["ci95"]
    assert Path("run/repetition-3/requests.jsonl").exists()

    assert loadgen_run("--num-prompts", "4", "--extra-body", '{"n": 2}', "--out", "two") == 0
    assert any(
        "n = 2: the answers of a request are counted as one" in w for w in result_of("two")["loadgen"]["warnings"]
    )
    assert loadgen_run("--num-prompts", "4", "--extra-body", '{"n": 1}', "--out", "one") == 0
    assert not any("n = 1" in warning for warning in result_of("one")["loadgen"]["warnings"])


def test_files_and_lines_of_results(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-prompts", "4", "--concurrency", "2", "--save-detailed", "--metadata", "gpu=none", "team=x")
    assert loadgen_run(*flags, "--save-result", "--result-dir", "results") == 0
    [path] = Path("results").glob("openai-infqps-concurrency2-blast-*.json")
    flat = json.loads(path.read_text())
    assert flat["gpu"] == "none"
    assert len(flat["ttfts"]) == len(flat["itls"]) == 4
    assert "loadgen" not in flat

    for _ in range(2):
        added = ("--num-prompts", "2", "--concurrency", "1", "--append-result", "--result-filename", "all.json")
        assert loadgen_run(*added) == 0
    assert [json.loads(line)["completed"] for line in Path("all.json").read_text().splitlines()] == [2, 2]
    capsys.readouterr()
    assert loadgen_run("--num-prompts", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcomes"] == {"ok": 3}


def test_clients_that_do_not_behave(loadgen_run: Run) -> None:
    flags = ("--disconnect-share", "30%", "--malformed-share", "30%", "--slow-reader-share", "20%", "--seed", "1")
    assert loadgen_run(*flags, "--num-prompts", "40", "--max-failure-share", "1", "--out", "run") == 0
    outcomes = result_of("run")["loadgen"]["outcomes"]
    assert outcomes["cancelled"] > 0
    assert outcomes["refused_as_meant"] > 0
    assert outcomes["ok"] > 0


def test_traces_and_their_prompts(loadgen_run: Run) -> None:
    flags = ("--request-rate", "100", "--num-prompts", "12", "--dataset-name", "shared-prefix", "--tenants", "2")
    assert loadgen_run(*flags, "--system-prompt-len", "32", "--out", "first") == 0
    assert main(["trace", "record", "first"]) == 0
    assert loadgen_run("--dataset-name", "trace", "--dataset-path", "first/trace.jsonl", "--out", "second") == 0
    assert main(["trace", "record", "second"]) == 0
    assert Path("first/trace.jsonl").read_bytes() == Path("second/trace.jsonl").read_bytes()
    assert main(["trace", "info", "second/trace.jsonl"]) == 0


def test_a_data_set_with_fixed_blocks_is_new_to_the_server_in_every_run(loadgen_run: Run) -> None:
    """Equal ids give equal prefixes within a run; another seed gives other text, the same seed the same."""
    lines = [{"timestamp": 0, "input_length": 1024, "output_length": 160, "hash_ids": [0, at]} for at in (1, 2)]
    Path("trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--dataset-name", "mooncake", "--dataset-path", "trace.jsonl", "--length-scale", "0.03125")
    prompts = {}
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert loadgen_run(*flags, "--seed", seed, "--tokenizer", "none", "--out", name) == 0
        bodies = run_folder.read_bodies(Path(name))
        prompts[name] = [json.loads(bodies[index, 0])["prompt"].split() for index in range(2)]
    first, second = prompts["a"]
    shared = next(at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert 8 <= shared < len(first)
    assert prompts["a"] == prompts["b"] != prompts["c"]


def test_reports_and_comparisons_of_runs(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert loadgen_run("--num-prompts", "10", "--concurrency", "2", "--out", name) == 0
    capsys.readouterr()
    assert main(["compare", "a", "b"]) == 0
    assert "TTFT" in capsys.readouterr().out
    assert main(["compare", "a", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)

    assert loadgen_run("--num-prompts", "4", "--no-report", "--out", "run") == 0
    assert not Path("run/report.html").exists()
    assert main(["report", "run"]) == 0
    assert Path("run/report.html").exists()


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", True), ("localhost", False)])
def test_a_key_goes_to_no_other_host_than_the_servers(
    loadgen_run: Run, monkeypatch: pytest.MonkeyPatch, host: str, *, told: bool
) -> None:
    seen: list[list[tuple[str, str]]] = []

    class Noted(Scraper):
        def __init__(self, url: str, headers: list[tuple[str, str]], *, verify_tls: bool) -> None:
            seen.append(headers)
            super().__init__(url, headers, verify_tls=verify_tls)

    monkeypatch.setattr("loadgen.cli.one_run.Scraper", Noted)
    flags = ("--api-key", "secret", "--metrics-url", f"http://{host}:9/metrics", "--num-prompts", "2")
    assert loadgen_run(*flags, "--concurrency", "1") == 0
    assert seen == [[("Authorization", "Bearer secret")] if told else []]


def test_a_data_set_that_ends_too_soon_is_told(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.jsonl").write_text('{"prompt": "hello", "output_tokens": 4}\n' * 9, encoding="utf-8")
    flags = ("--dataset-name", "custom", "--dataset-path", "mine.jsonl", "--concurrency", "4", "--num-warmups", "2")
    for asked, cautions in ((10, 1), (7, 0)):
        assert loadgen_run(*flags, "--num-prompts", str(asked)) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert told.count("--num-prompts asked for 10 conversations, but the data set has only 7") == cautions

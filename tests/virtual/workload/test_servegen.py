"""ServeGen folders: clients with windows of rates and of lengths."""

import json
from pathlib import Path

import pytest

from loadgen.errors import TraceFormatError
from loadgen.trace import ServeGenTrace
from loadgen.trace.servegen import read_clients
from serving.errors import ConfigError
from serving.virtual.workload.columns import TraceError
from serving.virtual.workload.open import open_workload
from tests.virtual.workload.traces import listed


def client(folder: Path, number: int, rates: list[float], lengths: dict[str, tuple[str, str]]) -> None:
    """The two files of a client, with windows of 600 s."""
    lines = [
        f"{600 * window},{rate},1.0,Gamma,0.8,{1 / rate}" if rate else f"{600 * window},0,0,,0,0"
        for window, rate in enumerate(rates)
    ]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines) + "\n")
    windows = {
        start: {"input_tokens": prompt, "output_tokens": output, "reason_ratio": "{}"}
        for start, (prompt, output) in lengths.items()
    }
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(windows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients, of which the second is silent in the first window and changes its lengths after the second."""
    client(tmp_path, 0, [1.0, 2.0, 0.0], {"0": ("{100: 1.0}", "{7: 0.5, 9: 0.5}")})
    client(
        tmp_path, 12, [0.0, 1.0, 1.0], {"0": ("{}", "{}"), "600": ("{5: 1}", "{6: 1}"), "1200": ("{50: 1}", "{60: 1}")}
    )
    return tmp_path


def test_rates_and_lengths_follow_the_windows_at_any_volume(folder: Path) -> None:
    requests = listed(open_workload(folder))
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    windows = [[r for r in requests if start <= r.arrival_s < start + 600] for start in (0, 600, 1200)]
    assert [len(window) for window in windows] == pytest.approx([600, 1800, 600], rel=0.15)
    kinds = [{(r.prompt_tokens, r.output_tokens) for r in window} for window in windows]
    assert kinds == [{(100, 7), (100, 9)}, {(100, 7), (100, 9), (5, 6)}, {(50, 60)}]
    workload = open_workload(folder, volume=4)
    requests = listed(workload)
    windows = [[r for r in requests if start <= r.arrival_s < start + 600] for start in (0, 600, 1200)]
    assert [len(window) for window in windows] == pytest.approx([2400, 7200, 2400], rel=0.1)
    assert {(r.prompt_tokens, r.output_tokens) for r in windows[2]} == {(50, 60)}
    assert ServeGenTrace(folder, volume=4).expected() == 12_000
    assert workload.name.endswith(", 4 x its requests")


def test_a_client_asks_the_same_whoever_else_does_and_whenever_one_looks(folder: Path) -> None:
    whole = listed(open_workload(folder))
    assert [r for r in whole if r.prompt_tokens < 100] == listed(open_workload(folder, clients=(12,)))
    part = listed(open_workload(folder, start_s=900, duration_s=450))
    assert part == [r._replace(arrival_s=r.arrival_s - 900) for r in whole if 900 <= r.arrival_s < 1350]


def test_clients_with_equal_windows_ask_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        client(tmp_path, number, [1.0], {"0": (f"{{{number}: 1}}", "{1: 1}")})
    arrivals: dict[int, set[float]] = {1: set(), 2: set()}
    for request in open_workload(tmp_path).requests:
        arrivals[request.prompt_tokens].add(request.arrival_s)
    assert arrivals[1]
    assert arrivals[2]
    assert not arrivals[1] & arrivals[2]


def test_what_cannot_be_asked_of_a_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match="a volume of 0; it must be above 0"):
        open_workload(folder, volume=0)
    path = folder / "plain.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,5,6\n")
    with pytest.raises(ConfigError, match="only a ServeGen folder's requests are made up, at any volume"):
        open_workload(path, volume=2)
    with pytest.raises(TraceError, match="no client 1; its clients are 0, 12"):
        open_workload(folder, clients=(0, 1))
    with pytest.raises(TraceError, match="no client sends requests from 9000 to inf s; choose"):
        open_workload(folder, start_s=9000)


def test_a_folder_that_is_not_kept_gives_the_same_and_as_many_as_expected(folder: Path) -> None:
    kept, streamed = open_workload(folder), open_workload(folder, kept_bytes=0)
    assert listed(kept) == listed(streamed)
    assert kept.count == len(listed(kept))
    assert streamed.count is None
    assert ServeGenTrace(folder).expected() == 3000
    assert ServeGenTrace(folder, (12,), 700, 1300).expected() == 1200
    assert listed(open_workload(folder, seed=1)) == listed(open_workload(folder, seed=1))
    assert listed(open_workload(folder, seed=1)) != listed(open_workload(folder, seed=2))


def test_one_window_lasts_ten_minutes_and_a_folder_must_be_readable(tmp_path: Path) -> None:
    client(tmp_path, 3, [1.0], {"0": ("{1: 1}", "{1: 1}")})
    assert read_clients(tmp_path)[1] == 600
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read_clients(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "line",
    [
        "600,1,1,Gamma,0.8",
        "600,x,1,Gamma,0.8,1",
        "600,1,1,Pareto,0.8,1",
        "600,1,1,Gamma,0,1",
        "-1,1,1,Gamma,1,1",
        "\xff",
    ],
)
def test_a_line_that_is_no_window(folder: Path, line: str) -> None:
    path = folder / "chunk-0-trace.csv"
    path.write_bytes(b"0,1,1,Gamma,0.8,1\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(TraceError, match=r"chunk-0-trace\.csv:2: not a window .*fetch the file again"):
        open_workload(folder)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not windows of input_tokens"),
        ('{"0": {"input_tokens": "{1: 1}"}}', "not windows of input_tokens"),
        ('{"now": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}', "not windows of input_tokens"),
        ('{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', "no lengths in any window; leave client 0 out"),
        ('{"0": {"input_tokens": "{1: x}", "output_tokens": "{1: 1}"}}', "window 0 has no lengths like"),
        ('{"0": {"input_tokens": "{1: 1}", "output_tokens": "{}"}}', "window 0 has no lengths like"),
        ('{"0": {"input_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}', "window 0 has no lengths like"),
    ],
)
def test_a_dataset_that_is_none(folder: Path, text: str, problem: str) -> None:
    (folder / "chunk-0-dataset.json").write_text(text)
    with pytest.raises(TraceError, match=rf"chunk-0-dataset\.json: {problem}"):
        open_workload(folder)


def test_a_dataset_that_is_missing_matters_only_if_its_client_is_wanted(folder: Path) -> None:
    (folder / "chunk-0-dataset.json").unlink()
    with pytest.raises(TraceError, match="fetch it, or leave client 0 out"):
        open_workload(folder)
    assert listed(open_workload(folder, clients=(12,)))

"""Series of runs that end early: the reason, and the saved measurements."""

import argparse
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.cli import one_run
from loadgen.cli.bench import Bench, open_bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.cli.main import main
from loadgen.cli.one_run import Measured, run_once
from loadgen.cli.run_command import _Backlog, add_flags
from loadgen.driver.progress import Progress
from loadgen.errors import WorkerLost
from loadgen.exit_codes import ExitCode
from loadgen.run_folder import read_sweep
from loadgen.selftest.ceiling import BlastServer
from tests.loadgen.cli.conftest import Run


def test_a_backlog_ends_a_probe_and_nothing_else_does() -> None:
    """10 a second for 60 s: at the first check, at 15 s, 75 requests are pending."""
    watch = _Backlog(10.0, 600)
    answers = {at: watch(Progress(now_s=at / 10, running=at // 4, waiting=at // 4)) for at in range(1, 160)}
    assert not any(answers[at] for at in range(1, 150))
    assert "piled up" in answers[150]

    # 12 a second offered, 10 served: at half time 15 wait, which luck explains; at the end 30, which it does not.
    watch = _Backlog(12.0, 180)
    assert not any([watch(Progress(now_s=at / 10, running=at // 5)) for at in range(1, 148)])
    assert "piled up" in watch(Progress(now_s=14.8, running=30, draining=True))
    assert not watch(Progress(now_s=14.9, running=30, draining=True))

    watch = _Backlog(10.0, 600)
    assert not any(watch(Progress(now_s=at / 10, running=3 + at % 3)) for at in range(700))


def test_a_run_that_a_watch_ends_keeps_what_it_has(server: BlastServer) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    flags = parser.parse_args(
        ["--url", server.url, "--concurrency", "2", "--duration", "30s", "--output-len", "4", "--quiet", "--no-scrape"]
    )
    with open_bench(flags, Console(file=io.StringIO())) as bench:
        run = run_once(
            bench, bench.load(), seed=1, folder=None, watch=lambda seen: "enough" if seen.finished > 3 else ""
        )
    assert run.aborted == "enough"
    assert not run.stopped
    assert run.result.outcomes["ok"] > 3
    assert run.result.duration_s < 20
    assert run.result.warnings == []


Once = Callable[..., Measured]


def replaced(monkeypatch: pytest.MonkeyPatch, made: list[Any], then: Once) -> None:
    """Every single run is replaced by `then`; its arguments are recorded."""

    def run_once(bench: Bench, load: LoadSchedule, **more: Any) -> Measured:
        made.append((load, more))
        return then(bench, load, **more)

    monkeypatch.setattr("loadgen.cli.series.run_once", run_once)
    monkeypatch.setattr("loadgen.cli.repeated.run_once", run_once)


def stopped_after(runs: int, made: list[Any]) -> Once:
    """Real runs, the last of which the user stops."""

    def once(bench: Bench, load: LoadSchedule, **more: Any) -> Measured:
        return dataclasses.replace(
            one_run.run_once(bench, load, **more), stopped=ExitCode.INTERRUPTED if len(made) >= runs else 0
        )

    return once


def test_ctrl_c_ends_a_sweep_in_a_run_and_in_a_pause(
    loadgen_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    replaced(monkeypatch, made, stopped_after(1, made))
    assert loadgen_run("--sweep", "rate", "--num-prompts", "2") == 130
    assert len(made) == 1
    assert "interrupted" in capsys.readouterr().err

    made.clear()
    replaced(monkeypatch, made, one_run.run_once)
    monkeypatch.setattr("loadgen.cli.repeated.rested", lambda pause_s: False)
    flags = ("--sweep", "concurrency", "--sweep-values", "1,2", "--num-prompts", "2", "--repeats", "2")
    assert loadgen_run(*flags) == 130
    assert len(made) == 1


def test_a_point_that_cannot_be_measured_does_not_cost_those_before_it(
    loadgen_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def second_fails(bench: Bench, load: LoadSchedule, **more: Any) -> Measured:
        if len(made) == 2:
            raise WorkerLost("worker 0 did not start")
        return one_run.run_once(bench, load, **more)

    made: list[Any] = []
    replaced(monkeypatch, made, second_fails)
    flags = ("--sweep", "concurrency", "--sweep-values", "1,2", "--num-prompts", "2", "--out", str(tmp_path / "out"))
    assert loadgen_run(*flags) == 1
    found = read_sweep(tmp_path / "out")
    assert [point.value for point in found.points] == [1.0]
    assert "worker 0 did not start" in found.explanation


def test_each_repetition_of_a_probe_is_watched_by_itself(loadgen_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(bench: Bench, load: LoadSchedule, **more: Any) -> Measured:
        two = dataclasses.replace(load, arrivals=None, concurrency=2, conversations=2)
        return stopped_after(3, made)(bench, two, **more)

    made: list[Any] = []
    replaced(monkeypatch, made, short)
    assert loadgen_run("--find-max", "rate", "--slo", "e2e=9s", "--repeats", "2") == 130
    _, first, second = (more.get("watch") for _, more in made)  # the first run determines the start
    assert first is not None
    assert first is not second


FLAGS = ("--input-len", "16", "--output-len", "5", "--pause", "0", "--no-scrape", "--probe-requests", "12")


def said(server: BlastServer, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["run", "--url", server.url, *FLAGS, *flags]) == 0
    return capsys.readouterr().out


def test_a_search_begins_from_a_short_run_and_says_how_long_it_takes(
    server: BlastServer, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--find-max", "concurrency", "--slo", "ttft=9s", "--max-probes", "2")
    text = said(server, capsys, *flags)
    begin = re.search(
        r"The full server does about ([\d.,]+) requests/s\. The search begins at (\d+) concurrent and takes about "
        r"(\d+ s|\d+ min), at most (\d+ s|\d+ min) \(2 probes\)\.",
        text,
    )
    assert begin is not None, text
    assert begin.start() < text.index("Probe 1:")
    first = re.search(r"Probe 1: (\d+) concurrent, ([\d,]+) requests, about", text)
    assert first is not None
    assert first[1] == begin[2]
    # With other load on the machine the generator may be late itself: the probe's result is not tested.
    assert re.search(r"\n  (holds|does not hold|not clear yet): \d+ of \d+ within the SLOs", text)


def test_limits_that_nothing_keeps_end_the_search_below_a_sixteenth(
    server: BlastServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.cli.run_command._OCTAVES_DOWN", 1)
    text = said(server, capsys, "--find-max", "rate", "--slo", "ttft=1us", "--duration", "100ms")
    values = [float(value) for value in re.findall(r"Probe \d+: ([\d.]+) requests/s,", text)]
    assert len(values) == 2
    assert values[1] == pytest.approx(values[0] / 2, rel=0.01)
    assert "does not hold: 0 of" in text
    assert "no value held the SLOs" in text
    assert "The largest rate" not in text


def test_quiet_says_nothing_of_it(server: BlastServer, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(server, capsys, "--find-max", "concurrency", "--slo", "ttft=9s", "--max-probes", "1", "--quiet")
    assert "Probe" not in text
    assert "The search begins" not in text

"""Probes of a search that end early: why, and what becomes of the run."""

import argparse
import io

from rich.console import Console

from loadgen.cli.bench import open_bench
from loadgen.cli.one_run import run_once
from loadgen.cli.run_command import add_flags
from loadgen.cli.series import _Backlog
from loadgen.driver.progress import Progress
from loadgen.selftest.process import BlastServer


def test_requests_that_pile_up_end_a_probe() -> None:
    """10 a second for 60 s: the first look is at 15 s; by then 75 requests hang."""
    watch = _Backlog(10.0, 600)
    answers = {at: watch(Progress(now_s=at / 10, running=at // 4, waiting=at // 4)) for at in range(1, 160)}
    assert not any(answers[at] for at in range(1, 150))
    assert "piled up" in answers[150]


def test_a_balanced_server_is_left_alone() -> None:
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

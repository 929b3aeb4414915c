"""Live progress: changing lines on a terminal, a plain line each ten seconds elsewhere, nothing when quiet."""

import io

import pytest
from rich.console import Console

from loadgen.driver.progress import Progress
from loadgen.record import RequestOutcome
from loadgen.run_report.live import LiveProgress, answer_line, bar_of, load_line


def _console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100), file


def _progress(now_s: float, **fields: object) -> Progress:
    return Progress(now_s=now_s, sent=12, finished=10, running=2, sent_per_s=4.0, **fields)  # type: ignore[arg-type]


def test_plain_lines_come_each_ten_seconds_of_run_time() -> None:
    console, file = _console(terminal=False)
    with LiveProgress(console, total=lambda: 40, label="rate 4") as live:
        for tenth in range(0, 241):
            live.update(_progress(tenth / 10))
    lines = file.getvalue().splitlines()
    assert len(lines) == 3  # at 0, 10 and 20 seconds
    assert lines[1].startswith("rate 4: 10 s, 10 of 40 done, 2 open, 4.00 sent/s")


def test_a_terminal_shows_each_update() -> None:
    console, file = _console(terminal=True)
    with LiveProgress(console, duration_s=10) as live:
        live.update(_progress(1.0, ttft_s=0.123))
        live.update(_progress(1.1, ttft_s=0.456))
    assert "123 ms" in file.getvalue()
    assert "456 ms" in file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_quiet(terminal: bool) -> None:
    console, file = _console(terminal=terminal)
    with LiveProgress(console, quiet=True) as live:
        live.update(_progress(7.0))
    assert file.getvalue() == ""


def test_lines() -> None:
    progress = _progress(
        3.0, waiting=5, lateness_p99_s=0.0004, ttft_s=0.2, tpot_s=0.031, tokens_per_s=1234.0,
        outcomes={RequestOutcome.OK: 8, RequestOutcome.REJECTED: 2},
    )  # fmt: skip
    assert (
        load_line(progress, None, 60.0)
        == "3 of 60 s, 10 done, 2 open, 5 waiting for a slot, 4.00 sent/s, late 400 µs (p99)"
    )
    assert answer_line(progress).startswith("TTFT 200 ms, TPOT 31.0 ms, 1,234 tokens/s")
    assert answer_line(progress).endswith("2 failed (2 rejected (429, 503))")
    assert load_line(_progress(-0.5), None, None) == "starting"
    assert "draining" in load_line(_progress(61.0, draining=True), None, 60.0)
    assert "TTFT –" in answer_line(_progress(0.0))


def test_the_share_that_is_done() -> None:
    console, _ = _console(terminal=False)
    assert LiveProgress(console, total=lambda: 40).done_share(_progress(1.0)) == 0.25
    assert LiveProgress(console, total=lambda: 40, duration_s=2.0).done_share(_progress(1.0)) == 0.5
    assert LiveProgress(console, duration_s=2.0).done_share(_progress(9.0)) == 1.0
    assert LiveProgress(console).done_share(_progress(9.0)) is None
    assert bar_of(0.5).count("━") == bar_of(0.5).count("·")
    assert len(bar_of(None)) == len(bar_of(1.0))

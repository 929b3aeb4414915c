"""The table at the end: complete, and never wider than 80 columns."""

import io

import pytest
from rich.console import Console

from loadgen.driver.progress import Progress
from loadgen.record import RequestOutcome
from loadgen.result import Generator, RunResult, SweepResult
from loadgen.run_report.console import WIDTH, print_result, print_sweep
from loadgen.run_report.live import LiveProgress, answer_line, bar_of, load_line
from tests.loadgen.run_report.samples import make_records, make_result, make_sweep

RECORDS = make_records(requests=100, failures=0.06)


def _printed(shown: RunResult | SweepResult, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    if isinstance(shown, SweepResult):
        print_sweep(shown, console)
    else:
        print_result(shown, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def _row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(name))[len(name) :].split()


@pytest.mark.parametrize("width", [80, 200, 40])
def test_lines_are_at_most_80_columns(width: int) -> None:
    result = make_result(RECORDS, warnings=["A long warning " * 12])
    for text in (_printed(result, width), _printed(make_sweep(requests=40), width)):
        assert max(map(len, text.splitlines())) <= WIDTH


def test_figures_in_blocks() -> None:
    result = make_result(RECORDS)
    text = _printed(result)
    tpot = result.metrics["tpot"]
    assert tpot.mean is not None
    assert tpot.max is not None
    expected = [tpot.mean, *(tpot.percentiles[name] for name in ("50", "90", "95", "99")), tpot.max]
    assert _row(text, "TPOT ")[:6] == [f"{1e3 * value:,.2f}" for value in expected]
    assert _row(text, "Successful requests") == [str(result.outcomes["ok"])]
    assert _row(text, "Output token throughput [tok/s]") == [f"{result.throughput.output_tokens_per_s:,.2f}"]
    assert "TTFT from intended send" in text
    assert "TTFT from actual send" in text
    assert "queue full" in text
    result = make_result(RECORDS)
    result.metrics["ttft_sent"], result.metrics["e2e_sent"] = result.metrics["ttft"], result.metrics["e2e"]
    assert "actual send" not in _printed(result)
    result = make_result(RECORDS)
    result.metrics["ttft"].with_failures = {"50": 0.1, "90": 0.25, "95": None, "99": None}
    assert _row(_printed(result), "TTFT, failures = ∞") == ["100.00", "250.00", "∞", "∞"]

    result = make_result(RECORDS)
    result.metrics["tpot"].percentiles = {str(name): name / 1e3 for name in (1, 5, 10, 25, 50, 75, 90, 99, 99.9)}
    text = _printed(result)
    assert text.count("Latency [ms]") == 2
    assert "p99.9" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_verdict_and_warnings() -> None:
    assert "The generator kept up." in _printed(make_result(RECORDS))
    generator = Generator(
        workers=1, cpu_share=1.0, loop_lag_p99_s=0.1, is_bottleneck=True, reasons=["A worker was full."]
    )
    text = _printed(make_result(RECORDS, generator=generator, interrupted=True, warnings=["Usage is missing."]))
    assert "No. The generator was the bottleneck" in text
    assert "A worker was full." in text
    assert "The run was interrupted" in text
    assert "Usage is missing." in text

    text = _printed(make_result(RECORDS, warnings=["4 failed; latencies are of the others", "short; run longer"]))
    assert "2 warnings, the worst first" in text
    assert "- 4 failed\n- short\n" in text

    generator = Generator(
        workers=1, cpu_share=0.1, loop_lag_p99_s=0.1, machine_was_busy=True, machine_reasons=["others had the cores"]
    )
    text = _printed(make_result(RECORDS, generator=generator))
    assert "The machine was busy" in text
    assert "others had the cores" in text
    assert "bottleneck" not in text
    assert "kept up" not in text


def test_a_sweep_has_a_line_per_point_and_nothing_has_none() -> None:
    text = _printed(make_sweep(rates=(2, 8, 12), requests=40))
    assert [line.split()[0] for line in text.splitlines() if " requests/s  " in line] == ["2", "8", "12"]
    assert "stopped early: the backlog grew" in text
    text = _printed(make_result(RECORDS, metrics={}, slo=None, cache=None, errors=[]))
    assert "Latency" not in text
    assert "SLOs" not in text


def _console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100), file


def _progress(now_s: float, **fields: object) -> Progress:
    return Progress(now_s=now_s, sent=12, finished=10, running=2, sent_per_s=4.0, **fields)  # type: ignore[arg-type]


def test_lines_on_a_terminal_and_elsewhere() -> None:
    console, file = _console(terminal=False)
    with LiveProgress(console, total=lambda: 40, label="rate 4") as live:
        for tenth in range(0, 241):
            live.update(_progress(tenth / 10))
    lines = file.getvalue().splitlines()
    assert len(lines) == 2  # at 10 and 20 seconds
    assert lines[0].startswith("rate 4: 10 s, 10 of 40 done, 2 open, 4.00 sent/s")

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


def test_what_is_said_of_progress() -> None:
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

    console, _ = _console(terminal=False)
    assert LiveProgress(console, total=lambda: 40).done_share(_progress(1.0)) == 0.25
    assert LiveProgress(console, total=lambda: 40, duration_s=2.0).done_share(_progress(1.0)) == 0.5
    assert LiveProgress(console, duration_s=2.0).done_share(_progress(9.0)) == 1.0
    assert LiveProgress(console).done_share(_progress(9.0)) is None
    assert bar_of(0.5).count("━") == bar_of(0.5).count("·")
    assert len(bar_of(None)) == len(bar_of(1.0))

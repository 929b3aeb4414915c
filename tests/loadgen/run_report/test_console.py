"""The table at the end: complete, and never wider than 80 columns."""

import io

import pytest
from rich.console import Console

from loadgen.result import Generator, RunResult, SweepResult
from loadgen.run_report.console import WIDTH, print_result, print_sweep
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


def test_the_figures_are_those_of_the_result_in_milliseconds() -> None:
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


def test_one_clock_is_enough_where_both_agree() -> None:
    result = make_result(RECORDS)
    result.metrics["ttft_sent"], result.metrics["e2e_sent"] = result.metrics["ttft"], result.metrics["e2e"]
    assert "actual send" not in _printed(result)


def test_failures_that_reach_a_percentile_make_it_infinite() -> None:
    result = make_result(RECORDS)
    result.metrics["ttft"].with_failures = {"50": 0.1, "90": 0.25, "95": None, "99": None}
    assert _row(_printed(result), "TTFT, failures = ∞") == ["100.00", "250.00", "∞", "∞"]


def test_many_percentiles_go_into_further_blocks() -> None:
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


def test_several_warnings_are_a_line_each() -> None:
    text = _printed(make_result(RECORDS, warnings=["4 failed; latencies are of the others", "short; run longer"]))
    assert "2 warnings, the worst first" in text
    assert "- 4 failed\n- short\n" in text


def test_a_busy_machine_is_not_called_the_generators_limit() -> None:
    generator = Generator(
        workers=1, cpu_share=0.1, loop_lag_p99_s=0.1, machine_was_busy=True, machine_reasons=["others had the cores"]
    )
    text = _printed(make_result(RECORDS, generator=generator))
    assert "The machine was busy" in text
    assert "others had the cores" in text
    assert "bottleneck" not in text
    assert "kept up" not in text


def test_nothing_measured() -> None:
    text = _printed(make_result(RECORDS, metrics={}, slo=None, cache=None, errors=[]))
    assert "Latency" not in text
    assert "SLOs" not in text


def test_a_sweep_has_a_line_per_point() -> None:
    text = _printed(make_sweep(rates=(2, 8, 12), requests=40))
    assert [line.split()[0] for line in text.splitlines() if " requests/s  " in line] == ["2", "8", "12"]
    assert "stopped early: the backlog grew" in text

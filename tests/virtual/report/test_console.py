"""The summary in a terminal."""

import dataclasses
import io

from rich.console import Console

from serving.virtual.report.latencies import Slo
from serving.virtual.report.simulation_console import print_speed, print_summary
from serving.virtual.report.summary import summarize
from serving.virtual.result import SimResult
from tests.virtual.report.made import made_result


def printed(result: SimResult, slo: Slo | None, width: int = 100) -> str:
    """The output in this many columns."""
    stream = io.StringIO()
    print_summary(result, summarize(result, slo), Console(file=stream, width=width))
    return stream.getvalue()


def test_it_says_what_ran_and_what_came_out() -> None:
    text = printed(made_result(400), Slo(ttft_s=2.0, tpot_s=0.05))
    for part in (
        "cloudmatrix384",
        "seed 7",
        "of 400 finished",
        "TTFT 2 s kept by",
        "prefill",
        "RDMA",
        "straggler",
        "p99",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 132
    assert printed(made_result(50), None) == printed(dataclasses.replace(made_result(50), wall_s=999.0), None)
    assert "[bold]x" in printed(dataclasses.replace(made_result(5), name="[bold]x"), None)
    nothing = dataclasses.replace(made_result(0, points=0, faults=False), instances=[], decision_counts={})
    text = printed(nothing, Slo(ttft_s=1.0))
    assert "0 of 0 finished" in text
    assert "plane" not in text
    assert "nan" not in text


def test_a_narrow_terminal_breaks_no_figure() -> None:
    result = made_result(400)
    wide, narrow = ([line for line in printed(result, None, width).splitlines() if line[:7] in ("prefill", "decode ")]
                    for width in (200, 80))  # fmt: skip
    assert wide
    assert [line.split() for line in narrow] == [line.split() for line in wide]


def test_the_speed() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    print_speed(made_result(50), console)
    assert "1,440 × real time" in stream.getvalue()
    print_speed(dataclasses.replace(made_result(50), wall_s=0.0), console)
    assert len(stream.getvalue().splitlines()) == 1

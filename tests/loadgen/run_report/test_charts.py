"""Contents of the plots of a run and of a sweep."""

import itertools
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import RequestOutcome, RequestRecord
from loadgen.report.chart import Line, ScatterChart, TimeAxis, compact, percentile_position
from loadgen.result import MetricDistribution, SweepResult, TimelinePoint
from loadgen.run_report.run_charts import (
    MOST_BINS,
    bin_edges,
    bin_width,
    length_charts,
    percentile_charts,
    prompt_length_chart,
    time_charts,
)
from loadgen.run_report.run_page import main_server_charts, other_server_charts
from loadgen.run_report.sweep_charts import sweep_charts, sweep_warnings
from loadgen.run_report.waterfall import thin, waterfall_chart
from loadgen.server.series import ServerSeries
from tests.loadgen.run_report.samples import make_records, make_result, make_series, make_sweep

RECORDS = make_records(requests=120, failures=0.05)
RESULT = make_result(RECORDS)


@pytest.mark.parametrize(("percentile", "position"), [(0, 0.0), (90, 1.0), (99, 2.0), (99.9, 3.0)])
def test_each_further_nine_is_as_far_as_the_last(percentile: float, position: float) -> None:
    assert percentile_position(percentile, 10**6) == pytest.approx(position)


@given(st.integers(1, 10**6))
def test_the_largest_value_stands_right_of_all_others(count: int) -> None:
    below = 100.0 * (1 - 1 / count) if count > 1 else 0.0
    assert percentile_position(below, count) < percentile_position(100, count) < math.inf


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none())
def test_what_json_cannot_say_is_none(value: float | None) -> None:
    found = compact(value)
    json.dumps(found, allow_nan=False)
    if found is not None and value:
        assert found == pytest.approx(value, rel=1e-5)


def test_percentile_curves_of_both_clocks_aligned() -> None:
    charts = {chart.id: chart for chart in percentile_charts(RESULT)}
    assert set(charts) == {"ttft-percentiles", "e2e-percentiles", "tpot-percentiles", "itl-percentiles"}
    ttft = charts["ttft-percentiles"]
    assert [line.name for line in ttft.lines] == ["from the intended send", "from the actual send"]
    assert ttft.limits[0].name == "SLO 500 ms"
    assert ttft.xs == sorted(ttft.xs)
    median = ttft.lines[0].values[ttft.xs.index(percentile_position(50, RESULT.metrics["ttft"].count))]
    assert median == compact(RESULT.metrics["ttft"].percentiles["50"])

    result = make_result(RECORDS)
    result.metrics = {
        "ttft": MetricDistribution(unit="s", count=2, curve=[(0, 1.0), (100, 3.0)]),
        "ttft_sent": MetricDistribution(unit="s", count=4, curve=[(0, 0.5), (50, 1.0), (100, 2.0)]),
    }
    chart = percentile_charts(result)[0]
    assert chart.lines[0].values == [1.0, None, 3.0, None]
    assert chart.lines[1].values == [0.5, 1.0, None, 2.0]


def test_rates_are_per_second_whatever_the_bins() -> None:
    points = [TimelinePoint(t_s=t, sent=3, finished=1, failed=0, running=2, output_tokens=50) for t in (0.0, 0.5, 1.0)]
    result = make_result(RECORDS, timeline=points)
    charts = {chart.id: chart for chart in time_charts(result)}
    assert bin_width(points) == 0.5
    assert charts["rates"].lines[0].values == [6.0, 6.0, 6.0]
    assert charts["rates"].xs == [0.25, 0.75, 1.25]
    assert charts["running"].xs == [0.5, 1.0, 1.5]  # at the end of a bin
    assert charts["tokens"].lines[0].values == [100.0, 100.0, 100.0]
    assert [line.name for line in charts["rates"].lines] == ["sent", "finished"]  # no failures
    assert "ttft-over-time" not in charts  # no data
    assert time_charts(make_result(RECORDS, timeline=[])) == []

    # The run ends half-way through its only bin: 50 tokens in 0.25 s, four requests open at once in between.
    point = TimelinePoint(
        t_s=0.0, width_s=0.25, open_mean=2.5, open_peak=4, sent=4, finished=4, failed=0, running=0, output_tokens=50
    )
    charts = {chart.id: chart for chart in time_charts(make_result(RECORDS, timeline=[point]))}
    assert charts["tokens"].lines[0].values == [200.0]
    assert charts["rates"].lines[0].values == [16.0]
    assert [line.values for line in charts["running"].lines] == [[2.5], [4.0]]


def test_the_waterfall_has_a_row_for_each_request() -> None:
    whole = waterfall_chart(RECORDS)
    assert whole is not None
    assert len(whole.lanes) == len(whole.lane_texts) == 115
    assert whole.note.startswith("All 115 measured requests")
    begins: dict[int, float] = {}
    for bar in whole.bars:
        begins.setdefault(bar.lane, bar.start)
    assert list(begins) == list(range(115))
    assert list(begins.values()) == sorted(begins.values())
    part = waterfall_chart(RECORDS, max_rows=10)
    assert part is not None
    assert part.note.startswith("10 of 115 measured requests, evenly picked")
    assert waterfall_chart([]) is None

    chart = waterfall_chart([RequestRecord(index=0, intended_s=1.0, outcome=RequestOutcome.CONNECTION, ended_s=2.0)])
    assert chart is not None
    (bar,) = chart.bars
    assert (bar.start, bar.end, chart.keys[bar.key].name) == (1.0, 2.0, "failed")
    assert chart.lane_texts == ["request 0.0 connection failed"]


@given(st.integers(0, 300), st.integers(1, 50))
def test_thinning_is_even(size: int, limit: int) -> None:
    records = [RequestRecord(index=number) for number in range(size)]
    chosen = [record.index for record in thin(records, limit)]
    assert len(chosen) == min(size, limit)
    gaps = {second - first for first, second in itertools.pairwise(chosen)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_charts_of_the_server_and_dots_by_prompt_length() -> None:
    series = make_series(RECORDS)
    main = {chart.id: chart for chart in main_server_charts(series)}
    assert set(main) == {"server-requests", "server-kv", "server-hits", "server-tokens", "server-times"}
    assert [line.name for line in main["server-requests"].lines] == ["running", "waiting"]
    assert main["server-hits"].lines[0].values[0] is None
    others = other_server_charts(series)
    assert [(chart.title, chart.y.unit) for chart in others] == [("cloudmatrix:ub_link_bytes", "per_s")]  # what moved
    assert main_server_charts(ServerSeries([0.0], {"other": [1.0]})) == []

    chart = prompt_length_chart(RECORDS)
    assert chart is not None
    successes = [record for record in RECORDS if record.outcome is RequestOutcome.OK and not record.warmup]
    assert sum(len(trace.xs) for trace in chart.traces) == len(successes)
    assert [trace.name for trace in chart.traces] == ["no cached tokens", "part of the prompt cached"]
    alike = [RequestRecord(index=number, outcome=RequestOutcome.OK, input_tokens=5) for number in range(9)]
    assert prompt_length_chart(alike) is None


def test_charts_of_a_sweep() -> None:
    sweep = make_sweep(rates=(2, 8, 12), requests=60)
    charts: dict[str, Any] = {chart.id: chart for chart in sweep_charts(sweep)}
    assert charts["requests-by-load"].lines[0].values == [2, 8, 12]
    assert charts["attainment-by-load"].lines[0].band
    assert charts["throughput-ttft"].traces[1].marks == ["2", "8", "12"]
    assert charts["ttft-by-load"].limits[0].value == 0.5
    assert sweep_charts(SweepResult(parameter="rate")) == []

    sweep = make_sweep(rates=(2, 8), requests=60)
    sweep.parameter = "concurrency"
    for point in sweep.points:
        point.result.slo = None
        point.result.throughput.goodput_per_s = None
    charts = {chart.id: chart for chart in sweep_charts(sweep)}
    assert "attainment-by-load" not in charts
    assert [line.name for line in charts["requests-by-load"].lines] == ["completed"]
    assert charts["ttft-by-load"].limits == []


def test_warnings_of_a_sweep_name_their_loads() -> None:
    sweep = make_sweep(rates=(2, 8, 12), requests=60)
    for point in sweep.points:
        point.result.warnings = ["usage is missing"]
    warnings = sweep_warnings(sweep)
    assert "At every load: usage is missing" in warnings
    assert "12 requests/s: stopped early: the backlog grew without end" in warnings
    assert any(text.startswith("8 requests/s: the generator was the bottleneck") for text in warnings)

    sweep = make_sweep(rates=(2, 8, 12), requests=60)
    for point in sweep.points[:2]:
        point.result.warnings = [f"it lasted {point.value:.1f} s", "always the same"]
    sweep.points[2].result.warnings = ["it lasted long"]
    warnings = sweep_warnings(sweep)
    assert "2, 8 requests/s: for instance, it lasted 2.0 s" in warnings
    assert "2, 8 requests/s: always the same" in warnings
    assert "12 requests/s: it lasted long" in warnings


def test_what_a_user_and_an_npu_get() -> None:
    """A stream of half the speed at the largest load; the middle one is worse than its neighbour in both."""
    sweep = make_sweep(rates=(2, 8, 12), requests=60)
    for point, tpot, tokens in zip(sweep.points, (0.02, 0.05, 0.04), (100.0, 300.0, 400.0), strict=True):
        point.result.metrics["tpot"].percentiles["50"] = tpot
        point.result.throughput.output_tokens_per_s = tokens
    chart = {chart.id: chart for chart in sweep_charts(sweep)}["pareto"]
    assert isinstance(chart, ScatterChart)
    assert chart.title == "Tokens per server against tokens per user"
    assert "--npus" in chart.note
    every, front = chart.traces
    assert (every.xs, every.ys) == ([50.0, 20.0, 25.0], [100.0, 300.0, 400.0])
    assert (front.xs, front.ys, front.marks) == ([25.0, 50.0], [400.0, 100.0], ["12", "2"])
    assert every.marks == ["", "8", ""]
    assert [(limit.value, limit.vertical) for limit in chart.limits] == [(20.0, True)]
    sweep.points[0].result.npus = 16
    chart = {chart.id: chart for chart in sweep_charts(sweep)}["pareto"]
    assert isinstance(chart, ScatterChart)
    assert chart.title == "Tokens per NPU against tokens per user"
    assert chart.traces[0].ys == [6.25, 18.75, 25.0]


def test_charts_are_json() -> None:
    for chart in [*percentile_charts(RESULT), *time_charts(RESULT), *sweep_charts(make_sweep(requests=40))]:
        assert json.loads(msgspec.json.encode(chart))["kind"] in ("lines", "scatter", "bars")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_edges_hold_all_lengths_in_bins_of_equal_width(lengths: list[int]) -> None:
    edges = bin_edges(lengths)
    width = edges[1] - edges[0]
    assert edges == list(range(edges[0], edges[-1] + 1, width))
    assert str(width).rstrip("0") in ("1", "2", "5")
    assert 0 <= edges[0] <= min(lengths)
    assert max(lengths) < edges[-1]
    assert len(edges) <= MOST_BINS + 4


def test_lengths_are_counted_once_and_beside_the_planned() -> None:
    records = make_records(requests=80, failures=0.1)
    good = [record for record in records if record.outcome == "ok" and not record.warmup]
    charts = length_charts(records)
    assert [chart.id for chart in charts] == ["input-lengths", "output-lengths"]
    for chart in charts:
        assert sum(value or 0 for value in chart.lines[-1].values) == len(good)
        assert len(chart.lines) == 1

    records = make_records(requests=20, failures=0.0)
    for record in records:
        record.planned_output_tokens, record.output_tokens, record.input_tokens = 200, 64, None
    (chart,) = length_charts(records)
    assert [line.name for line in chart.lines] == ["planned", "requests"]
    assert chart.note.startswith("All have 64.")
    assert length_charts([]) == []


def test_the_last_position_is_in_view() -> None:
    """Positions are rounded to six digits; a position outside of the axis would be cut off."""
    chart = TimeAxis(1.0623456).chart(
        "a", "A", [0.0, 1.0623456], [Line(name="a", values=[1.0, 9.0], color="blue")], "s"
    )
    assert chart.x.high == chart.xs[-1] == 1.06235

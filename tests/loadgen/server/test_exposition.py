"""From a page of Prometheus text to numbers."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OutputError, TraceFormatError, UsageError
from loadgen.server.series import (
    HIT_SHARE,
    MOST_NAMES,
    MetricsPage,
    MetricsScrape,
    ServerSeries,
    npus,
    parse,
    read_series,
    series_of,
    write_series,
)

PAGE = """\
# HELP vllm:num_requests_running Sequences in the running batch
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.7
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16"} 1.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{sleep_state="awake"} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop"} 5.0
vllm:request_success_total{finished_reason="length"} 6.0
# TYPE vllm:request_success_created gauge
vllm:request_success_created{finished_reason="stop"} 1.7e9
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1"} 1.0
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 2.0
vllm:time_to_first_token_seconds_count{engine="0"} 2.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.3
# TYPE cloudmatrix:queue_tokens gauge
cloudmatrix:queue_tokens{engine="a"} NaN
# TYPE sglang:latency summary
sglang:latency{quantile="0.5"} 1
sglang:latency_sum 10
sglang:latency_count 4
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 100
vllm:untyped_total 7
vllm:untyped_gauge 8
"""


def test_a_page() -> None:
    page = parse(PAGE)
    assert page.gauges == {
        "vllm:num_requests_running": 7.0,
        "vllm:kv_cache_usage_perc": pytest.approx(0.6),
        "vllm:untyped_gauge": 8.0,
    }
    assert page.counters == {"vllm:request_success_total": 11.0, "vllm:untyped_total": 7.0}
    assert page.sums == {"vllm:time_to_first_token_seconds": 0.3, "sglang:latency": 10.0}
    assert page.counts == {"vllm:time_to_first_token_seconds": 2.0, "sglang:latency": 4.0}
    assert not page.is_empty()


@pytest.mark.parametrize("text", ["", "<html>hello</html>", "\0\1\2", "http_requests_total 3\n"])
def test_pages_of_other_programs_are_empty(text: str) -> None:
    assert parse(text).is_empty()


def test_garbage_and_invented_names() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse('vllm:num_requests_running{engine="0"} many\n')
    page = parse("".join(f"vllm:n{i} 1\n" for i in range(2 * MOST_NAMES)))
    assert len(page.gauges) == MOST_NAMES


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_gauges_of_engines_add_up_and_shares_stay_shares(values: list[float]) -> None:
    lines = [f'vllm:num_requests_waiting{{engine="{i}"}} {value!r}' for i, value in enumerate(values)]
    shares = [f'vllm:kv_cache_usage_perc{{engine="{i}"}} {value / 1e9!r}' for i, value in enumerate(values)]
    page = parse("\n".join([*lines, *shares]))
    assert math.isclose(page.gauges["vllm:num_requests_waiting"], sum(values), rel_tol=1e-9)
    assert -1e-12 <= page.gauges["vllm:kv_cache_usage_perc"] <= 1 + 1e-9


QUEUE, RUNNING = "vllm:request_queue_time_seconds", "vllm:num_requests_running"
PROMPTS, QUERIES, HITS = (
    f"vllm:{name}_total" for name in ("prompt_tokens", "prefix_cache_queries", "prefix_cache_hits")
)
LOOKS = [
    MetricsScrape(99.0, MetricsPage({RUNNING: 0.0}, {PROMPTS: 1000.0, QUERIES: 1000.0}, {QUEUE: 4.0}, {QUEUE: 10.0})),
    # Hits appear with their first event.
    MetricsScrape(
        101.0, MetricsPage({RUNNING: 5.0}, {PROMPTS: 1500.0, QUERIES: 1500.0, HITS: 100.0}, {QUEUE: 7.0}, {QUEUE: 16.0})
    ),
    MetricsScrape(102.0, MetricsPage({}, {PROMPTS: 1500.0, QUERIES: 1500.0, HITS: 100.0}, {QUEUE: 7.0}, {QUEUE: 16.0})),
]


def test_columns_and_gaps() -> None:
    series = series_of(LOOKS, 100.0)
    assert series.times_s == [-1.0, 1.0, 2.0]
    assert series.values == {
        "vllm:num_requests_running": [0.0, 5.0, None],
        "vllm:prompt_tokens_per_s": [None, 250.0, 0.0],
        "vllm:prefix_cache_queries_per_s": [None, 250.0, 0.0],
        "vllm:prefix_cache_hits_per_s": [None, 50.0, 0.0],
        f"{QUEUE}_mean": [None, 0.5, None],
        HIT_SHARE: [None, 0.2, None],
    }

    before = MetricsScrape(0.0, MetricsPage({}, {"vllm:prompt_tokens_total": 900.0}, {QUEUE: 9.0}, {QUEUE: 3.0}))
    after = MetricsScrape(1.0, MetricsPage({}, {"vllm:prompt_tokens_total": 10.0}, {QUEUE: 1.0}, {QUEUE: 1.0}))
    assert series_of([before, after], 0.0).values == {
        "vllm:prompt_tokens_per_s": [None, None],
        f"{QUEUE}_mean": [None, None],
    }


def test_npus_and_no_looks() -> None:
    assert npus(ServerSeries([0.0, 1.0, 2.0], {"cloudmatrix:npus": [16.0, None, 32.0]})) == 32
    assert npus(ServerSeries([0.0], {"cloudmatrix:npus": [0.0]})) is None
    assert npus(series_of(LOOKS, 100.0)) is None
    assert series_of([], 0.0) == ServerSeries()


def test_the_file(tmp_path: Path) -> None:
    series = series_of(LOOKS, 100.0)
    write_series(tmp_path, series)
    assert read_series(tmp_path) == series
    assert len((tmp_path / "server_metrics.jsonl").read_text().splitlines()) == 3
    with pytest.raises(OutputError, match="cannot write"):
        write_series(tmp_path / "missing", series)
    (tmp_path / "other").mkdir()
    write_series(tmp_path / "other", ServerSeries())
    assert read_series(tmp_path / "other") is None, "no file without looks"
    (tmp_path / "other" / "server_metrics.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_series(tmp_path / "other")


@pytest.mark.parametrize("line", ["nonsense", '{"vllm:x": 1}', '{"t_s": null}', '{"t_s": 1, "vllm:x": "y"}', "[]"])
def test_lines_that_are_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "server_metrics.jsonl").write_text('{"t_s": 0.0}\n' + line + "\n")
    with pytest.raises(TraceFormatError, match=r"server_metrics\.jsonl:2: not a line of server metrics"):
        read_series(tmp_path)

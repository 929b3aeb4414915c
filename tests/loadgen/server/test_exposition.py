"""From a page of Prometheus text to numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.exposition import MOST_NAMES, parse

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


def test_garbage_behind_a_known_name() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse('vllm:num_requests_running{engine="0"} many\n')


def test_a_server_that_invents_names_is_cut_off() -> None:
    page = parse("".join(f"vllm:n{i} 1\n" for i in range(2 * MOST_NAMES)))
    assert len(page.gauges) == MOST_NAMES


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_gauges_of_engines_add_up_and_shares_stay_shares(values: list[float]) -> None:
    lines = [f'vllm:num_requests_waiting{{engine="{i}"}} {value!r}' for i, value in enumerate(values)]
    shares = [f'vllm:kv_cache_usage_perc{{engine="{i}"}} {value / 1e9!r}' for i, value in enumerate(values)]
    page = parse("\n".join([*lines, *shares]))
    assert math.isclose(page.gauges["vllm:num_requests_waiting"], sum(values), rel_tol=1e-9)
    assert -1e-12 <= page.gauges["vllm:kv_cache_usage_perc"] <= 1 + 1e-9

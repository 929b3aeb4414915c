from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.metrics import GatewayMetrics
from serving.values.pool_outcome import MissReason
from tests.telemetry.samples import PER_CHOICE, PER_REQUEST, samples, stats, value

NAMES_OF_VLLM = {
    "gauge": ("num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info",),
    "counter": (
        "prompt_tokens generation_tokens prompt_tokens_cached request_success num_preemptions prefix_cache_queries",
        "prefix_cache_hits admission_rejections",
    ),
    "histogram": (
        "time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds",
        "e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds",
        "request_decode_time_seconds request_prompt_tokens request_generation_tokens request_num_preemptions",
        "request_max_num_generation_tokens request_params_n request_params_max_tokens iteration_tokens_total",
    ),
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_names_and_types_that_dashboards_expect() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats(steps_by_tokens=(1,) * 14, generated_tokens_total=9))
    metrics.http_request("GET", "/health", 200, 0.1)
    families = {f.name: f.type for f in text_string_to_metric_families(metrics.render().decode())}
    for kind, names in NAMES_OF_VLLM.items():
        for name in " ".join(names).split():
            assert families[f"vllm:{name}"] == kind
    assert (families["http_requests"], families["http_request_duration_seconds"]) == ("counter", "histogram")


def test_no_family_is_announced_without_a_series_and_each_says_what_it_counts() -> None:
    metrics = GatewayMetrics("m")
    for published in (False, True):
        if published:
            metrics.publish_instance(stats())
        for family in text_string_to_metric_families(metrics.render(namespaces=True).decode()):
            assert family.samples, family.name
            assert " " in family.documentation, family.name


def test_labelled_counters_are_there_from_the_start() -> None:
    found = samples(GatewayMetrics("m"))
    for name, label, values in (
        ("vllm:request_success", "finished_reason", {"stop", "length", "abort", "error"}),
        ("vllm:admission_rejections", "reason", {"overloaded", "unavailable"}),
        ("cloudmatrix:prompt_tokens_recomputed", "reason", {reason.value for reason in MissReason}),
    ):
        told = {dict(labels)[label]: v for (of, labels), v in found.items() if of == f"{name}_total"}
        assert told == dict.fromkeys(values, 0.0)


@pytest.mark.parametrize("bad", ["", "abort", "error"])
def test_series_of_requests_count_the_same_ends(bad: str) -> None:
    metrics = GatewayMetrics("m", clock=Clock())
    timeline = metrics.request_started([10, 20], 2, 9, arrived=99.0)
    for index in range(4):
        timeline.begun(index, 0.5, 4)
        timeline.preempted(index, index)
        if index != 1:  # one ends without a token
            timeline.tokens(index, 1, 101.0)
            timeline.tokens(index, index + 1, 103.0)
        timeline.finished(index, bad if bad and index == 3 else "stop", 104.0)
    timeline.ended()
    good = 3 if bad else 4
    assert {name: value(metrics, f"vllm:{name}_count") for name in PER_CHOICE} == dict.fromkeys(PER_CHOICE, good)
    whole = 0 if bad else 1
    assert {name: value(metrics, f"vllm:{name}_count") for name in PER_REQUEST} == dict.fromkeys(PER_REQUEST, whole)
    assert value(metrics, "vllm:prompt_tokens_total") == 30, "each prompt once"
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == good
    if not bad:
        assert value(metrics, "vllm:request_prompt_tokens_sum") == 60
        assert value(metrics, "vllm:request_prefill_kv_computed_tokens_sum") == 60 - 4 * 4
        assert value(metrics, "vllm:request_max_num_generation_tokens_sum") == 5
        assert value(metrics, "vllm:request_inference_time_seconds_sum") == pytest.approx(3 * 2.5 + 3.5)
        assert value(metrics, "vllm:request_queue_time_seconds_sum") == pytest.approx(2.0)
        assert value(metrics, "vllm:request_num_preemptions_sum") == 0 + 1 + 2 + 3
        assert value(metrics, "vllm:request_num_preemptions_bucket", le="1.0") == 2


def test_what_waits_by_reason_is_what_waits() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats(waiting=3, pulling=1, fetching=1))
    assert value(metrics, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(metrics, "vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    assert value(metrics, "vllm:num_requests_waiting") == 5


def test_one_request_from_arrival_to_end() -> None:
    clock = Clock()
    metrics = GatewayMetrics("m", engine="g1", clock=clock)
    timeline = metrics.request_started([10, 20], 1, 5, arrived=100.0)
    assert metrics.in_flight == 1
    timeline.begun(0, 0.0, 8)
    timeline.begun(1, 0.0, 0)
    timeline.tokens(0, 1, 100.5)
    timeline.tokens(0, 2, 100.9)
    timeline.tokens(1, 1, 100.25)
    timeline.finished(0, "stop", 101.0)
    timeline.finished(1, "length", 101.0)
    timeline.ended()
    own = {"model_name": "m", "engine": "g1"}
    assert value(metrics, "vllm:prompt_tokens_total", **own) == 30
    assert value(metrics, "vllm:generation_tokens_total", **own) == 4
    assert value(metrics, "vllm:prompt_tokens_cached_total", **own) == 8
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 1
    assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 0
    assert value(metrics, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.75)
    assert value(metrics, "vllm:time_to_first_token_seconds_count") == 2
    assert value(metrics, "vllm:inter_token_latency_seconds_count") == 2
    assert value(metrics, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.4)
    assert value(metrics, "vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.2)
    assert value(metrics, "vllm:request_time_per_output_token_seconds_count") == 1, "one token has no time per token"
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(2.0)
    assert value(metrics, "vllm:request_decode_time_seconds_sum") == pytest.approx(0.4)
    assert value(metrics, "vllm:request_generation_tokens_sum") == 4
    assert value(metrics, "vllm:request_params_max_tokens_sum") == 5
    assert metrics.in_flight == 0


@dataclass
class Line:
    """Queued requests, by their prompt tokens."""

    requests: list[int]

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def tokens(self) -> int:
        return sum(self.requests)


def test_the_line_at_the_gateway_is_told_as_it_is_when_somebody_looks() -> None:
    metrics = GatewayMetrics("m", engine="g1")
    assert not [name for name, _ in samples(metrics) if "gateway_queued" in name], "it has none"
    metrics.line = line = Line([])
    for line.requests in ([7, 30], []):
        own = {"model_name": "m", "engine": "g1"}
        assert value(metrics, "cloudmatrix:gateway_queued_requests", **own) == len(line.requests)
        assert value(metrics, "cloudmatrix:gateway_queued_tokens", **own) == sum(line.requests)


def test_tokens_of_a_first_batch_count_as_simultaneous_and_aborted_requests_leave_latencies_alone() -> None:
    metrics = GatewayMetrics("m", clock=Clock())
    timeline = metrics.request_started([1], 1, None, arrived=100.0)
    timeline.tokens(0, 3, 101.0)
    assert value(metrics, "vllm:inter_token_latency_seconds_count") == 2
    assert value(metrics, "vllm:inter_token_latency_seconds_sum") == 0
    timeline.finished(0, "abort", 102.0)
    timeline.ended()
    assert value(metrics, "vllm:e2e_request_latency_seconds_count") == 0
    assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 1


def test_rejections_and_http_exchanges_are_counted() -> None:
    metrics = GatewayMetrics("m")
    metrics.rejected("overloaded")
    assert value(metrics, "vllm:admission_rejections_total", reason="overloaded") == 1
    metrics.http_request("GET", "/v1/models/{name:path}", 200, 0.1)
    assert value(metrics, "http_requests_total", method="GET", status="200") == 1
    assert value(metrics, "http_request_duration_seconds_count") == 1


def test_instances_are_published_replaced_and_forgotten() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats("decode#a", running=1, kv_blocks_total=10, kv_blocks_used=4, block_tokens=16))
    metrics.publish_instance(stats("decode#a", running=3, kv_blocks_total=10, kv_blocks_used=5, block_tokens=16))
    metrics.publish_instance(stats("decode#b", waiting=2, preemptions_total=7))
    assert value(metrics, "vllm:num_requests_running", engine="decode#a", pool="decode", model_name="m") == 3
    assert value(metrics, "vllm:kv_cache_usage_perc", engine="decode#a") == 0.5
    assert value(metrics, "vllm:kv_cache_usage_perc", engine="decode#b") == 0.0
    assert value(metrics, "vllm:num_preemptions_total", engine="decode#b") == 7
    assert value(metrics, "vllm:cache_config_info", engine="decode#a", block_size="16", num_gpu_blocks="10") == 1
    metrics.retain_instances(["decode#b"])
    assert not any(("engine", "decode#a") in labels for _, labels in samples(metrics))
    assert any(("engine", "decode#b") in labels for _, labels in samples(metrics))


def test_iteration_tokens_are_cumulative_on_the_wire() -> None:
    metrics = GatewayMetrics("m")
    counts = (2, 0, 3, *([0] * 10), 1)
    metrics.publish_instance(stats(steps_by_tokens=counts, generated_tokens_total=500))
    assert value(metrics, "vllm:iteration_tokens_total_bucket", le="1.0") == 2
    assert value(metrics, "vllm:iteration_tokens_total_bucket", le="16.0") == 5
    assert value(metrics, "vllm:iteration_tokens_total_bucket", le="+Inf") == 6
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 500


def test_pool_series() -> None:
    metrics = GatewayMetrics("m")
    handoffs: dict[str, Any] = {"handoff_bytes_in_total": 9, "handoff_seconds_total": 0.5, "handoff_failures_total": 1}
    metrics.publish_instance(stats(**handoffs, hbm_used_bytes=3, busy_s=2.5))
    assert value(metrics, "cloudmatrix:handoff_bytes_total", pool="decode") == 9
    assert value(metrics, "cloudmatrix:handoff_seconds_total") == 0.5
    assert value(metrics, "cloudmatrix:handoff_failures_total") == 1
    assert value(metrics, "cloudmatrix:npu_hbm_used_bytes") == 3
    assert value(metrics, "cloudmatrix:busy_seconds_total") == 2.5


def test_guesses_by_position() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats("d0", drafts_total=10, draft_tokens_total=25, accepted_drafts_total=(8, 5, 1)))
    metrics.publish_instance(stats("p0"))
    name = "vllm:spec_decode_num_accepted_tokens"
    assert value(metrics, "vllm:spec_decode_num_drafts_total", engine="d0") == 10
    assert value(metrics, "vllm:spec_decode_num_draft_tokens_total", engine="d0") == 25
    assert value(metrics, f"{name}_total", engine="d0") == 14
    assert [value(metrics, f"{name}_per_pos_total", engine="d0", position=str(at)) for at in range(3)] == [8, 5, 1]
    assert value(metrics, f"{name}_total", engine="p0") == 0

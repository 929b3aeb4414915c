"""What requests through the application leave in the metrics."""

from tests.gateway.api.support import Harness, chat, complete, request
from tests.telemetry.samples import value


def test_counts_after_requests(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon a time", cached_tokens=3, per_update=2)
    chat(harness.app, n=2, stream=True)
    complete(harness.app, prompt=["a dog", "a cat"], max_tokens=2)
    chat(harness.app, model="nope")
    metrics = harness.metrics
    tokens = 2 * len(harness.say("Once upon a time").tokens) + 2 * 2
    prompts = [len(s.prompt) for job in harness.backend.jobs for s in job.sequences]
    assert value(metrics, "vllm:generation_tokens_total") == tokens
    assert value(metrics, "vllm:prompt_tokens_total") == prompts[0] + prompts[2] + prompts[3]
    assert value(metrics, "vllm:prompt_tokens_cached_total") == 9
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 2
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 2
    assert value(metrics, "vllm:time_to_first_token_seconds_count") == 4
    assert value(metrics, "http_requests_total", handler="/v1/chat/completions", status="200") == 1
    assert value(metrics, "http_requests_total", handler="/v1/chat/completions", status="404") == 1
    assert metrics.in_flight == 0


def test_unknown_paths_share_one_series(harness: Harness) -> None:
    for path in ("/a", "/b", "/c"):
        request(harness.app, "GET", path)
    assert value(harness.metrics, "http_requests_total", handler="none") == 3


def test_endpoint_speaks_prometheus_text(harness: Harness) -> None:
    reply = request(harness.app, "GET", "/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"}' in reply.text


def test_load_while_a_request_runs(harness: Harness) -> None:
    timeline = harness.metrics.request_started([1], 1, None, arrived=0.0)
    assert request(harness.app, "GET", "/load").json() == {"server_load": 1}
    timeline.ended()
    assert request(harness.app, "GET", "/load").json() == {"server_load": 0}

"""Metrics as a scraper reads them."""

from prometheus_client.parser import text_string_to_metric_families

from serving.ids import ReplicaId
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.stats import InstanceStats

PER_CHOICE = (
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_prefill_kv_computed_tokens", "request_num_preemptions"),
)
PER_REQUEST = ("request_params_n", "request_params_max_tokens", "request_max_num_generation_tokens")
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(metrics: GatewayMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples as a scraper reads them."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    found = [v for (n, own), v in samples(metrics).items() if n == name and frozenset(labels.items()) <= own]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def stats(replica: str = "decode#a", **more: int | float | tuple[int, ...]) -> InstanceStats:
    return InstanceStats(replica=ReplicaId(replica), pool="decode", **more)  # type: ignore[arg-type]  # tests pass fitting fields


def by_engine(shown: Page, name: str) -> dict[str, float]:
    return {dict(labels)["engine"]: value for (of, labels), value in shown.items() if of == name}

"""Ray's board for Serve LLM gets every series that has an equivalent in this system, and the rest is listed."""

import re
from collections.abc import Iterable
from itertools import chain

from prometheus_client.core import Metric

from serving.ids import ReplicaId
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.ray_board import ServePlace, gateway_series, instance_series
from serving.telemetry.stats import BOUNDS_S, HandoffPath, InstanceStats, OperationLatencies, PoolClientStats
from tests.pages import ROOT
from tests.telemetry.ray_panels import WITHOUT_MEANING, series

PLACE = ServePlace("decode", "cloudmatrix#decode#x", "cloudmatrix")


def test_every_series_of_the_installed_ray_is_shown_or_named_with_its_reason() -> None:
    asked, shown = series(), names(chain(gateway(), instance()))
    assert len(asked) > 30
    assert asked - shown == set(WITHOUT_MEANING)


def test_the_runbook_names_those_without_a_meaning() -> None:
    runbook = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
    assert [name for name in WITHOUT_MEANING if f"`{name}`" not in runbook] == []


def test_nothing_is_written_that_the_board_does_not_ask_for() -> None:
    asked, shown = ({_family(one) for one in found} for found in (series(), names(chain(gateway(), instance()))))
    assert shown - asked == set()


def test_a_gateway_counts_no_instance_and_an_instance_no_request() -> None:
    requests, instances = names(gateway()), names(instance())
    assert requests & instances == {"ray_serve_deployment_request_counter_total"}


def test_handoffs_and_the_pool_are_exact() -> None:
    values = {sample.name: sample.value for family in instance() for sample in family.samples}
    assert values["vllm:nixl_xfer_time_seconds_sum"] == 0.75
    assert values["vllm:nixl_xfer_time_seconds_count"] == 3
    assert values["vllm:nixl_bytes_transferred_sum"] == 1000
    assert values["vllm:nixl_num_failed_transfers"] == 1
    assert values["vllm:kv_offload_load_bytes_total"] == 10
    assert values["vllm:kv_offload_store_size_count"] == 2


def test_requests_are_left_to_serve_where_it_carries_them() -> None:
    metrics = GatewayMetrics("m")
    metrics.http_request("POST", "/v1/completions", 200, 1.0)
    metrics.http_request("GET", "/metrics", 200, 1.0)
    counted = {
        by_serve: {
            sample.labels["route"]: sample.value
            for family in gateway_series(metrics, PLACE, by_serve)
            for sample in family.samples
            if family.name.startswith("serve_")
        }
        for by_serve in (False, True)
    }
    assert counted == {False: {"/v1/completions": 1}, True: {}}


def gateway() -> Iterable[Metric]:
    metrics = GatewayMetrics("m")
    metrics.http_request("POST", "/v1/completions", 200, 1.0)
    return gateway_series(metrics, PLACE, False)


def instance() -> Iterable[Metric]:
    times = OperationLatencies(BOUNDS_S, (3, *[0] * len(BOUNDS_S)), 0.75)
    twice = OperationLatencies((0.1,), (1, 1), 0.5)
    use = PoolClientStats(moved_bytes={"get": 10, "put": 20}, latencies={"lookup": twice, "get": twice, "put": twice})
    paths = (HandoffPath("a", "b", 1000, 1, times),)
    stats = InstanceStats(replica=ReplicaId("decode#x"), pool="decode", pool_use=use, paths=paths, block_tokens=16)
    return instance_series("m", stats, 5, PLACE)


def names(families: Iterable[Metric]) -> set[str]:
    """Names that Ray's exporter gives."""
    return {f"ray_{sample.name.replace(':', '_')}" for family in families for sample in family.samples}


def _family(name: str) -> str:
    return re.sub("_(bucket|sum|count)$", "", name)

"""Series about the KV-cache pool, and which of them name tenants."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.pool_stats import MemoryServerStats, OperationLatencies, PoolClientStats
from tests.telemetry.samples import samples, stats, value

USE = PoolClientStats(
    lookups=9,
    blocks={"dram": 5, "ssd": 2, "absent": 3, "lost": 1},
    lost={"timeout": 1},
    stored=7,
    present=4,
    dropped={"full": 3},
    moved_bytes={"get": 70, "put": 80},
    latencies={
        "lookup": OperationLatencies((0.001, 0.01), (3, 2, 1), 0.5),
        "put": OperationLatencies((0.001, 0.01), (0, 1, 0), 0.005),
    },
)
SERVER = MemoryServerStats(
    "kv-0",
    0.5,
    entries=12,
    used_bytes={"dram": 10, "ssd": 20},
    capacity_bytes={"dram": 100, "ssd": 200},
    hits={"dram": 4, "ssd": 1},
    misses=3,
    evictions={"to_ssd": 6},
    refused={"quota": 2},
    moved_bytes={"sent": 8},
    damaged={"ssd": 1},
    latencies={"lookup": OperationLatencies((0.001,), (2, 3), 0.25)},
    namespaces={"acme": {"dram": 6, "ssd": 5}, "umbrella": {"dram": 4, "ssd": 0}},
)


def test_what_an_instance_got_from_the_pool() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats("decode#a", pool_use=USE))  # type: ignore[arg-type]  # tests pass fitting fields
    own = {"engine": "decode#a", "pool": "decode", "model_name": "m"}
    assert value(metrics, "cloudmatrix:pool_lookups_total", **own) == 9
    for result, count in USE.blocks.items():
        assert value(metrics, "cloudmatrix:pool_blocks_total", **own, result=result) == count
    assert value(metrics, "cloudmatrix:pool_lost_blocks_total", **own, reason="timeout") == 1
    assert value(metrics, "cloudmatrix:pool_stored_blocks_total", **own) == 7
    assert value(metrics, "cloudmatrix:pool_present_blocks_total", **own) == 4
    assert value(metrics, "cloudmatrix:pool_dropped_blocks_total", **own, reason="full") == 3
    assert value(metrics, "cloudmatrix:pool_bytes_total", **own, direction="get") == 70
    assert value(metrics, "cloudmatrix:pool_lookup_seconds_bucket", **own, le="0.01") == 5
    assert value(metrics, "cloudmatrix:pool_lookup_seconds_count", **own) == 6
    assert value(metrics, "cloudmatrix:pool_lookup_seconds_sum", **own) == 0.5
    assert value(metrics, "cloudmatrix:pool_put_seconds_count", **own) == 1


def test_a_memory_server_whose_numbers_are_unknown_has_no_series_rather_than_zeros() -> None:
    """When the pool's controller was started anew, all counters fell to zero for a second and came back."""
    metrics = GatewayMetrics("m")
    metrics.publish_servers([SERVER])
    assert value(metrics, "cloudmatrix:memory_server_misses_total", server="kv-0") == 3
    metrics.publish_servers([MemoryServerStats("kv-0", 0.5, heard=False)])
    assert not any(("server", "kv-0") in labels for _, labels in samples(metrics))
    metrics.publish_servers([SERVER])
    assert value(metrics, "cloudmatrix:memory_server_misses_total", server="kv-0") == 3


def test_instances_without_a_pool_have_no_such_series() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats("decode#a"))
    assert not any(name.startswith("cloudmatrix:pool_") for name, _ in samples(metrics))


def test_a_memory_server() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_servers([SERVER])
    prefix, own = "cloudmatrix:memory_server", {"server": "kv-0"}
    assert value(metrics, f"{prefix}_weight", **own) == 0.5
    assert value(metrics, f"{prefix}_entries", **own) == 12
    assert value(metrics, f"{prefix}_used_bytes", **own, tier="ssd") == 20
    assert value(metrics, f"{prefix}_capacity_bytes", **own, tier="dram") == 100
    assert value(metrics, f"{prefix}_hits_total", **own, tier="dram") == 4
    assert value(metrics, f"{prefix}_misses_total", **own) == 3
    assert value(metrics, f"{prefix}_evictions_total", **own, how="to_ssd") == 6
    assert value(metrics, f"{prefix}_refused_total", **own, reason="quota") == 2
    assert value(metrics, f"{prefix}_bytes_total", **own, direction="sent") == 8
    assert value(metrics, f"{prefix}_damaged_total", **own, tier="ssd") == 1
    assert value(metrics, f"{prefix}_seconds_count", **own, operation="lookup") == 5


def test_a_server_that_leaves_takes_its_series_along() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_servers([SERVER])
    metrics.publish_servers([])
    assert not any(("server", "kv-0") in labels for _, labels in samples(metrics))
    assert b"kv-0" not in metrics.render(namespaces=True)


def test_tenants_are_named_only_on_request() -> None:
    metrics = GatewayMetrics("m", engine="g")
    timeline = metrics.request_started([10], 1, None, 0.0, "acme")
    timeline.begun(0, 0.0, 4, pulled_tokens=3, recomputed={"timeout": 2})
    timeline.ended()
    metrics.publish_servers([SERVER])
    text = metrics.render().decode()
    assert "acme" not in text
    assert "umbrella" not in text
    assert value(metrics, "cloudmatrix:prompt_tokens_pulled_total") == 3
    assert value(metrics, "cloudmatrix:prompt_tokens_recomputed_total", reason="timeout") == 2
    families = list(text_string_to_metric_families(metrics.render(namespaces=True).decode()))
    assert len({family.name for family in families}) == len(families), "one family, one place"
    found = {(s.name, s.labels.get("namespace"), s.labels.get("tier")): s.value for f in families for s in f.samples}
    assert found["cloudmatrix:namespace_prompt_tokens_total", "acme", None] == 10
    assert found["cloudmatrix:namespace_prompt_tokens_cached_total", "acme", None] == 4
    assert found["cloudmatrix:namespace_pool_bytes", "acme", "dram"] == 6
    assert found["cloudmatrix:namespace_pool_bytes", "umbrella", "ssd"] == 0


@pytest.mark.parametrize("namespaces", [False, True])
def test_all_that_is_rendered_can_be_read(namespaces: bool) -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_servers([SERVER])
    assert list(text_string_to_metric_families(metrics.render(namespaces=namespaces).decode()))

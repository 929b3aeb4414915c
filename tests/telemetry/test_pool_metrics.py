"""Series about the KV-cache pool, and which of them name tenants."""

from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.stats import MemoryServerStats, OperationLatencies, PoolClientStats
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
    loads={"ahead": 6},
    damaged={"ssd": 1},
    latencies={"lookup": OperationLatencies((0.001,), (2, 3), 0.25)},
    namespaces={"acme": {"dram": 6, "ssd": 5}, "umbrella": {"dram": 4, "ssd": 0}},
)


def test_what_an_instance_got_from_the_pool() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats("decode#a", pool_use=USE))  # type: ignore[arg-type]  # tests pass fitting fields
    own = {"engine": "decode#a", "pool": "decode", "model_name": "m"}
    for name, labels, amount in (
        ("lookups_total", {}, 9), *(("blocks_total", {"result": result}, n) for result, n in USE.blocks.items()),
        ("lost_blocks_total", {"reason": "timeout"}, 1), ("stored_blocks_total", {}, 7),
        ("present_blocks_total", {}, 4),
        ("dropped_blocks_total", {"reason": "full"}, 3), ("bytes_total", {"direction": "get"}, 70),
        ("lookup_seconds_bucket", {"le": "0.01"}, 5), ("lookup_seconds_count", {}, 6), ("lookup_seconds_sum", {}, 0.5),
        ("put_seconds_count", {}, 1),
    ):  # fmt: skip
        assert value(metrics, f"cloudmatrix:pool_{name}", **own, **labels) == amount


def test_a_memory_server_whose_numbers_are_unknown_has_no_series_rather_than_zeros() -> None:
    """When the pool's controller was restarted, all counters fell to zero for a second and returned."""
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
    for name, labels, amount in (
        ("weight", {}, 0.5), ("entries", {}, 12), ("used_bytes", {"tier": "ssd"}, 20),
        ("capacity_bytes", {"tier": "dram"}, 100), ("hits_total", {"tier": "dram"}, 4), ("misses_total", {}, 3),
        ("evictions_total", {"how": "to_ssd"}, 6), ("refused_total", {"reason": "quota"}, 2),
        ("bytes_total", {"direction": "sent"}, 8), ("damaged_total", {"tier": "ssd"}, 1),
        ("loads_total", {"cause": "ahead"}, 6),
        ("seconds_count", {"operation": "lookup"}, 5),
    ):  # fmt: skip
        assert value(metrics, f"cloudmatrix:memory_server_{name}", server="kv-0", **labels) == amount
    metrics.publish_servers([])
    assert not any(("server", "kv-0") in labels for _, labels in samples(metrics)), "it takes its series along"
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


def test_all_that_is_rendered_can_be_read() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_servers([SERVER])
    for namespaces in (False, True):
        assert list(text_string_to_metric_families(metrics.render(namespaces=namespaces).decode()))

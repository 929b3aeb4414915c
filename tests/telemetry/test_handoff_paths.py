"""Handoffs are counted by source and target node."""

from serving.ids import ReplicaId
from serving.instance.live.kv_moves import HandoffPathCounts
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.stats import BOUNDS_S, MOST_SOURCES, OTHER, InstanceStats, between_hosts, handoff_paths
from tests.telemetry.samples import value


def test_pulls_are_shown_by_their_two_nodes() -> None:
    counts = HandoffPathCounts()
    counts.add("aa", 0.002, 1000, failed=False)
    counts.add("aa", 0.3, 500, failed=False)
    counts.add("aa", 9.0, 0, failed=True)
    counts.add("cc", 0.1, 7, failed=False)
    paths = between_hosts(handoff_paths(counts.facts(), "bb"), {"aa": "n0", "bb": "n1"})
    metrics = GatewayMetrics("m")
    metrics.publish_instance(InstanceStats(replica=ReplicaId("d#a"), pool="decode", paths=paths, lost_paths=2))
    pair = {"source": "n0", "target": "n1", "engine": "d#a"}
    assert value(metrics, "cloudmatrix:handoff_path_seconds_count", **pair) == 2, "a failed one took no time to arrive"
    assert abs(value(metrics, "cloudmatrix:handoff_path_seconds_sum", **pair) - 0.302) < 1e-9
    assert value(metrics, "cloudmatrix:handoff_path_seconds_bucket", le="0.002", **pair) == 1
    assert value(metrics, "cloudmatrix:handoff_path_bytes_total", **pair) == 1500
    assert value(metrics, "cloudmatrix:handoff_path_failures_total", **pair) == 1
    assert value(metrics, "cloudmatrix:handoff_path_bytes_total", source="cc") == 7  # without a label
    assert value(metrics, "cloudmatrix:isolated_paths", trouble="lost") == 2
    assert value(metrics, "cloudmatrix:isolated_paths", trouble="slow") == 0


def test_rows_are_bounded() -> None:
    counts = HandoffPathCounts()
    for number in range(3 * MOST_SOURCES):
        counts.add(str(number), 0.1, 1, failed=False)
    paths = handoff_paths(counts.facts(), "bb")
    assert len(paths) == MOST_SOURCES + 1
    assert {path.source: path.moved_bytes for path in paths}[OTHER] == 2 * MOST_SOURCES
    assert sum(sum(path.latencies.counts) for path in paths) == 3 * MOST_SOURCES
    assert len(paths[0].latencies.counts) == len(BOUNDS_S) + 1

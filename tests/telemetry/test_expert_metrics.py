"""Series of ranks."""

from dataclasses import replace

from serving.telemetry.metrics import GatewayMetrics
from serving.values.expert_facts import ExpertFacts
from tests.telemetry.samples import samples, stats, value

FACTS = ExpertFacts(epoch=3, map_version=5, members=(1,), ranks=2, experts=4, to_ranks=((1, 2), (0, 9)))


def test_a_rank_shows_its_rows_and_its_group() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(replace(stats("decode#a.r1"), rank=1, experts=FACTS))
    own = {"engine": "decode#a.r1", "pool": "decode", "rank": "1"}
    assert value(metrics, "cloudmatrix:expert_rows_total", layer="0", **own) == 3
    assert value(metrics, "cloudmatrix:expert_rows_total", layer="1", **own) == 9
    assert value(metrics, "cloudmatrix:rank_epoch", **own) == 3
    assert value(metrics, "cloudmatrix:expert_map_version", **own) == 5
    assert value(metrics, "cloudmatrix:group_members", **own) == 1
    assert value(metrics, "cloudmatrix:group_ranks", **own) == 2


def test_an_instance_alone_has_none_of_them() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats())
    assert not [name for name, _ in samples(metrics) if "expert" in name or "rank" in name]

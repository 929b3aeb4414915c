"""Series of ranks."""

from dataclasses import replace

import pytest
from msgspec import structs

from serving.telemetry.group_metrics import MOST_LAYERS, MOST_PEERS, GroupStats
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.shared_metrics import newest_groups
from serving.values.expert_map import ExchangeFacts, ExpertFacts, SessionTimes
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


def shown(facts: ExpertFacts, name: str) -> dict[tuple[str, ...], float]:
    """Series of that name of one rank, by the labels that distinguish them."""
    metrics = GatewayMetrics("m")
    metrics.publish_instance(replace(stats("decode#a.r1"), rank=1, experts=facts))
    common = {"model_name", "engine", "pool", "rank"}
    found = {of: amount for of, amount in samples(metrics).items() if of[0] == name}
    return {tuple(text for key, text in sorted(labels) if key not in common): n for (_, labels), n in found.items()}


def test_a_large_model_has_one_series_of_rows_a_rank() -> None:
    large = structs.replace(FACTS, to_ranks=((1, 2),) * (MOST_LAYERS + 1))
    assert shown(large, "cloudmatrix:expert_rows_total") == {("all",): 3 * (MOST_LAYERS + 1)}
    small = structs.replace(FACTS, to_ranks=((1, 2),) * MOST_LAYERS)
    assert len(shown(small, "cloudmatrix:expert_rows_total")) == MOST_LAYERS


def test_the_exchange_is_counted_by_peer() -> None:
    """Rank 2 has left, and is still reported; window and lists have space for rank 3, which never joined."""
    facts = structs.replace(
        FACTS,
        members=(0, 1),
        exchange=ExchangeFacts(
            (70, 0, 9, 0), (30, 0, 1, 0), (1.5, 0.0, 0.25, 0.0), 4.0, sessions=SessionTimes(0.5, 1.0, 0.25, 8)
        ),
    )
    assert shown(facts, "cloudmatrix:session_seconds_total") == {("A2E",): 0.5, ("experts",): 1.0, ("E2A",): 0.25}
    assert shown(facts, "cloudmatrix:session_rounds_total") == {(): 8}
    assert shown(facts, "cloudmatrix:exchange_seconds_total") == {("own",): 4.0, ("wait",): 1.75}
    assert shown(facts, "cloudmatrix:exchange_wait_seconds_total") == {("0",): 1.5, ("2",): 0.25}
    assert shown(facts, "cloudmatrix:exchange_bytes_total") == {
        ("0", "rows"): 70, ("2", "rows"): 9, ("0", "results"): 30, ("2", "results"): 1,
    }  # fmt: skip


def test_peers_of_a_large_group_are_one() -> None:
    many = MOST_PEERS + 1
    facts = structs.replace(
        FACTS, members=tuple(range(many)), exchange=ExchangeFacts((2,) * many, (1,) * many, (0.5,) * many, 1.0)
    )
    assert shown(facts, "cloudmatrix:exchange_wait_seconds_total") == {("all",): many / 2}
    assert shown(facts, "cloudmatrix:exchange_bytes_total") == {("all", "rows"): 2 * many, ("all", "results"): many}


def balance(*layers: float | None) -> dict[str, float]:
    metrics = GatewayMetrics("m")
    metrics.publish_groups([GroupStats("decode#a", "decode", (1, 0.0), layers)])
    named = [(dict(labels), amount) for (of, labels), amount in samples(metrics).items() if "balancedness" in of]
    assert all((one["group"], one["pool"]) == ("decode#a", "decode") for one, _ in named)
    return {one["layer"]: amount for one, amount in named}


def test_balancedness_by_layer_with_mean_and_worst() -> None:
    assert balance(0.5, 1.0) == {"0": 0.5, "1": 1.0, "mean": 0.75, "worst": 0.5}
    assert balance() == balance(None) == {}
    assert balance(0.5, None) == {"0": 0.5, "mean": 0.5, "worst": 0.5}, "no row has come to the second layer"


def test_of_many_layers_the_worst_few_are_named() -> None:
    large = balance(*(1 - layer / 100 for layer in range(58)))
    assert set(large) == {"mean", "worst", "54", "55", "56", "57"}
    assert large["worst"] == large["57"] == pytest.approx(0.43)


def test_moves_rebalances_and_losses_of_a_group() -> None:
    metrics = GatewayMetrics("m")
    told = GroupStats("decode#a", "decode", (1, 0.0), (), 5, {"done": 2, "late": 1}, {"dead": 3}, True, 4)
    metrics.publish_groups([told])
    own = {"group": "decode#a", "pool": "decode"}
    assert value(metrics, "cloudmatrix:expert_moves_total", **own) == 5
    assert value(metrics, "cloudmatrix:expert_rebalances_total", outcome="late", **own) == 1
    assert value(metrics, "cloudmatrix:rank_losses_total", reason="dead", **own) == 3
    assert value(metrics, "cloudmatrix:expert_rebalance_running", **own) == 1
    assert value(metrics, "cloudmatrix:rank_growths_given_up_total", **own) == 4


def test_pace_of_ranks_measures_against_slow_ones_and_masked_experts() -> None:
    metrics = GatewayMetrics("m")
    told = GroupStats(
        "decode#a", "decode", (1, 0.0), paces={"2": 1.5}, measures={"fewer_tokens": 2, "none": 1}, masked=12
    )
    metrics.publish_groups([told])
    own = {"group": "decode#a", "pool": "decode"}
    assert value(metrics, "cloudmatrix:masked_experts", **own) == 12
    assert value(metrics, "cloudmatrix:rank_pace", rank="2", **own) == 1.5
    assert value(metrics, "cloudmatrix:straggler_measures_total", measure="fewer_tokens", **own) == 2


def test_a_group_is_there_once_as_its_ranks_told_last() -> None:
    one, other = GatewayMetrics("m", name="a"), GatewayMetrics("m", name="b")
    one.publish_groups([GroupStats("decode#a", "decode", (1, 9.0), (0.5,))])
    other.publish_groups([GroupStats("decode#a", "decode", (2, 3.0), (0.8,))])
    (newest,) = newest_groups([one.numbers(), other.numbers()])
    assert newest.balancedness == (0.8,)
    one.publish_groups([])
    assert not [name for name, _ in samples(one) if "balancedness" in name]


def test_an_instance_alone_has_none_of_them() -> None:
    metrics = GatewayMetrics("m")
    metrics.publish_instance(stats())
    assert not [name for name, _ in samples(metrics) if "expert" in name or "rank" in name]

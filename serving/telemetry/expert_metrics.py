"""Series of ranks that compute together: rows to experts by layer, epoch, map, and who of the group is there."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from serving.values.expert_facts import ExpertFacts

RankRows = Sequence[tuple[tuple[str, ...], int, ExpertFacts]]
"""Label values of a rank (model_name, engine, pool), its number, and its facts."""

_LABELS = ("model_name", "engine", "pool", "rank")
_GAUGES = (
    ("cloudmatrix:rank_epoch", "Epoch that the rank computes in: each lost or replaced rank begins another", "epoch"),
    ("cloudmatrix:expert_map_version", "Version of the expert map that the rank uses", "map_version"),
    ("cloudmatrix:group_ranks", "Ranks that the rank's group has when it is whole", "ranks"),
)


def expert_series(rows: RankRows) -> Iterable[Metric]:
    """All series; as many a rank as the model has layers with experts, and four."""
    sent = CounterMetricFamily(
        "cloudmatrix:expert_rows",
        "Rows of the rank that chose an expert, each as often as it chose, by layer with experts",
        labels=(*_LABELS, "layer"),
    )
    members = GaugeMetricFamily(
        "cloudmatrix:group_members", "Ranks that the rank computes together with, itself included", labels=_LABELS
    )
    for own, rank, facts in rows:
        members.add_metric((*own, str(rank)), len(facts.members))
        for layer, count in enumerate(facts.sent):
            sent.add_metric((*own, str(rank), str(layer)), count)
    yield sent
    yield members
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for own, rank, facts in rows:
            gauge.add_metric((*own, str(rank)), getattr(facts, field))
        yield gauge

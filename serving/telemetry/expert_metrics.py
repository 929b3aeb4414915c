"""Metrics of ranks that compute together: rows to experts by layer, exchange with peers, epoch, map, members."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from serving.telemetry.group_metrics import MOST_LAYERS
from serving.values.expert_facts import ExpertFacts

RankRows = Sequence[tuple[tuple[str, ...], int, ExpertFacts]]
"""Label values of a rank (model_name, engine, pool), its number, and its facts."""

MOST_PEERS = 16
"""Peers of a rank with a series each. Beyond this number they share one, `all`."""
ALL = "all"

_LABELS = ("model_name", "engine", "pool", "rank")
_GAUGES = (
    ("cloudmatrix:rank_epoch", "Epoch of the rank: each lost or replaced rank starts a new one", "epoch"),
    ("cloudmatrix:expert_map_version", "Version of the rank's expert map", "map_version"),
    ("cloudmatrix:group_ranks", "Ranks of the complete group", "ranks"),
)


def expert_series(rows: RankRows) -> Iterable[Metric]:
    """All metrics; per rank at most one series per layer, three per peer, and six."""
    sent = CounterMetricFamily(
        "cloudmatrix:expert_rows",
        "Rows that the rank routed to experts, once per chosen expert, by layer with experts; one series (all) "
        f"for more than {MOST_LAYERS} layers",
        labels=(*_LABELS, "layer"),
    )
    members = GaugeMetricFamily(
        "cloudmatrix:group_members", "Ranks in the rank's current group, itself included", labels=_LABELS
    )
    for own, rank, facts in rows:
        members.add_metric((*own, str(rank)), len(facts.members))
        named = [(str(layer), count) for layer, count in enumerate(facts.sent)]
        for layer, count in named if len(named) <= MOST_LAYERS else [(ALL, sum(facts.sent))]:
            sent.add_metric((*own, str(rank), layer), count)
    yield sent
    yield members
    yield from _exchange(rows)
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for own, rank, facts in rows:
            gauge.add_metric((*own, str(rank)), getattr(facts, field))
        yield gauge


def _exchange(rows: RankRows) -> Iterable[Metric]:
    seconds = CounterMetricFamily(
        "cloudmatrix:exchange_seconds",
        "Time of the rank's steps, including steps in which it only serves peers: waiting for a peer (wait), the rest "
        "(own) [s]",
        labels=(*_LABELS, "kind"),
    )
    waits = CounterMetricFamily(
        "cloudmatrix:exchange_wait_seconds",
        "Time that the rank waited, by the peer that arrived last; one series (all) for more than "
        f"{MOST_PEERS} peers [s]",
        labels=(*_LABELS, "peer"),
    )
    moved = CounterMetricFamily(
        "cloudmatrix:exchange_bytes",
        "Rows of the rank that the peer's experts read (rows), and results that the peer sent back for them (results); "
        f"one series (all) for more than {MOST_PEERS} peers [bytes]",
        labels=(*_LABELS, "peer", "what"),
    )
    for own, rank, facts in rows:
        counted, labels = facts.exchange, (*own, str(rank))
        if counted is None:
            continue
        seconds.add_metric((*labels, "own"), counted.worked_s)
        seconds.add_metric((*labels, "wait"), sum(counted.waited_s))
        peers = [peer for peer in facts.members if peer != rank]
        for peer, value in _by_peer(peers, counted.waited_s):
            waits.add_metric((*labels, peer), value)
        for what, values in (("rows", counted.sent_bytes), ("results", counted.returned_bytes)):
            for peer, value in _by_peer(peers, values):
                moved.add_metric((*labels, peer, what), value)
    yield seconds
    yield waits
    yield moved


def _by_peer(peers: Sequence[int], values: Sequence[float]) -> Iterable[tuple[str, float]]:
    """Value per current or former peer; former peers keep their counters. Lists are sized for ranks that may join
    later.
    """
    shown = [peer for peer, value in enumerate(values) if value or peer in peers]
    if len(shown) > MOST_PEERS:
        return [(ALL, sum(values))]
    return [(str(peer), values[peer]) for peer in shown]

"""Metrics of groups of ranks that no single rank can compute."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.values.expert_map import ExpertFacts

MOST_LAYERS = 16
"""Layers with a series each. Beyond this number only the worst layers have one."""
WORST_LAYERS = 4

_LABELS = ("model_name", "pool", "group")


class GroupStats(Struct, frozen=True, array_like=True):
    """Statistics of one group, as announced by its ranks.

    Args:
        told: epoch, and time of its ranks' last report [s]; larger = later.
        balancedness: by layer with experts, 0 to 1; None of one without rows yet, such as the draft layer's without
            speculative decoding.
        moves, rebalances, losses: since the group's shell started: experts moved, rebalances by outcome, lost ranks by
            reason.
        rebalancing: whether a rebalance is in progress.
        not_grown: since then: grow commands that were abandoned.
        paces: time of each rank's experts for the same work over the median rank's, by rank.
        measures: applied against slow ranks or reverted, by measure.
        spares: ranks waiting to join.
        masked: experts of all layers that no rank holds.
    """

    group: str
    pool: str
    told: tuple[int, float]
    balancedness: tuple[float | None, ...] = ()
    moves: int = 0
    rebalances: dict[str, int] = {}
    losses: dict[str, int] = {}
    rebalancing: bool = False
    not_grown: int = 0
    paces: dict[str, float] = {}
    measures: dict[str, int] = {}
    spares: int = 0
    masked: int = 0


class GroupBoard(Collector):
    """Latest statistics of every group; a group's series end with it."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._groups: list[GroupStats] = []

    def publish(self, groups: Iterable[GroupStats]) -> None:
        """Replace the statistics of all groups."""
        self._groups = sorted(groups, key=lambda one: one.group)

    @property
    def groups(self) -> tuple[GroupStats, ...]:
        """Statistics of all groups, by name."""
        return tuple(self._groups)

    def collect(self) -> Iterable[Metric]:
        """All metrics of groups, for the registry. Empty without groups."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterable[Metric]:
        balance = GaugeMetricFamily(
            "cloudmatrix:expert_balancedness",
            "Mean divided by maximum of the ranks' rows since they joined, 0 to 1, by layer; also of the worst layer "
            f"(worst) and the layers' mean (mean). Of more than {MOST_LAYERS} layers, only the {WORST_LAYERS} worst",
            labels=(*_LABELS, "layer"),
        )
        moves = CounterMetricFamily("cloudmatrix:expert_moves", "Experts moved to another slot", labels=_LABELS)
        rebalances = CounterMetricFamily(
            "cloudmatrix:expert_rebalances",
            "Finished rebalances of experts, and manual moves, by outcome",
            labels=(*_LABELS, "outcome"),
        )
        running = GaugeMetricFamily(
            "cloudmatrix:expert_rebalance_running", "1 while experts are being moved, else 0", labels=_LABELS
        )
        losses = CounterMetricFamily(
            "cloudmatrix:rank_losses", "Ranks that were lost and replaced, by reason", labels=(*_LABELS, "reason")
        )
        not_grown = CounterMetricFamily(
            "cloudmatrix:rank_growths_given_up",
            "Requests for more ranks that were given up because the new ranks could not be built",
            labels=_LABELS,
        )
        pace = GaugeMetricFamily(
            "cloudmatrix:rank_pace",
            "Time of the rank's experts for the same work, relative to the group's median rank; 1 = as fast",
            labels=(*_LABELS, "rank"),
        )
        measures = CounterMetricFamily(
            "cloudmatrix:straggler_measures",
            "Measures against slow ranks, by measure; none = a measure was withdrawn",
            labels=(*_LABELS, "measure"),
        )
        spares = GaugeMetricFamily("cloudmatrix:group_spares", "Loaded spare ranks", labels=_LABELS)
        masked = GaugeMetricFamily(
            "cloudmatrix:masked_experts",
            "Experts of all layers that no rank holds after a loss, so that gates choose others and tokens may differ",
            labels=_LABELS,
        )
        for one in self._groups:
            own = self._model_name, one.pool, one.group
            for layer, value in _shown(one.balancedness):
                balance.add_metric((*own, layer), value)
            moves.add_metric(own, one.moves)
            running.add_metric(own, one.rebalancing)
            not_grown.add_metric(own, one.not_grown)
            spares.add_metric(own, one.spares)
            masked.add_metric(own, one.masked)
            for outcome, count in one.rebalances.items():
                rebalances.add_metric((*own, outcome), count)
            for reason, count in one.losses.items():
                losses.add_metric((*own, reason), count)
            for rank, value in one.paces.items():
                pace.add_metric((*own, rank), value)
            for measure, count in one.measures.items():
                measures.add_metric((*own, measure), count)
        yield from (balance, moves, rebalances, running, losses, not_grown, pace, measures, spares, masked)


def _shown(balance: Sequence[float | None]) -> Iterable[tuple[str, float]]:
    """Layers to export, with their balancedness."""
    known = {layer: value for layer, value in enumerate(balance) if value is not None}
    if not known:
        return
    yield "mean", sum(known.values()) / len(known)
    yield "worst", min(known.values())
    named = known if len(balance) <= MOST_LAYERS else sorted(known, key=known.__getitem__)[:WORST_LAYERS]
    for layer in named:
        yield str(layer), known[layer]


# Metrics of ranks that compute together: rows to experts by layer, exchange with peers, epoch, map, members.

RankRows = Sequence[tuple[tuple[str, ...], int, ExpertFacts]]
"""Label values of a rank (model_name, engine, pool), its number, and its facts."""

MOST_PEERS = 16
"""Peers of a rank with a series each. Beyond this number they share one, `all`."""
ALL = "all"

_EXPERT_LABELS = ("model_name", "engine", "pool", "rank")
_GAUGES = (
    ("cloudmatrix:rank_epoch", "Epoch of the rank: each lost or replaced rank starts a new one", "epoch"),
    ("cloudmatrix:expert_map_version", "Version of the rank's expert map", "map_version"),
    ("cloudmatrix:group_ranks", "Ranks of the complete group", "ranks"),
)


def expert_series(rows: RankRows) -> Iterable[Metric]:
    """All metrics; per rank at most one series per layer, three per peer, and eleven."""
    sent = CounterMetricFamily(
        "cloudmatrix:expert_rows",
        "Rows that the rank routed to experts, once per chosen expert, by layer with experts; one series (all) "
        f"for more than {MOST_LAYERS} layers",
        labels=(*_EXPERT_LABELS, "layer"),
    )
    members = GaugeMetricFamily(
        "cloudmatrix:group_members", "Ranks in the rank's current group, itself included", labels=_EXPERT_LABELS
    )
    masked = CounterMetricFamily(
        "cloudmatrix:masked_rows", "Rows of the rank's steps while experts were masked", labels=_EXPERT_LABELS
    )
    for own, rank, facts in rows:
        members.add_metric((*own, str(rank)), len(facts.members))
        masked.add_metric((*own, str(rank)), facts.masked_rows)
        named = [(str(layer), count) for layer, count in enumerate(facts.sent)]
        for layer, count in named if len(named) <= MOST_LAYERS else [(ALL, sum(facts.sent))]:
            sent.add_metric((*own, str(rank), layer), count)
    yield sent
    yield members
    yield masked
    yield from _exchange(rows)
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_EXPERT_LABELS)
        for own, rank, facts in rows:
            gauge.add_metric((*own, str(rank)), getattr(facts, field))
        yield gauge


def _exchange(rows: RankRows) -> Iterable[Metric]:
    seconds = CounterMetricFamily(
        "cloudmatrix:exchange_seconds",
        "Time of the rank's steps, including steps in which it only serves peers: waiting for a peer (wait), the rest "
        "(own) [s]",
        labels=(*_EXPERT_LABELS, "kind"),
    )
    waits = CounterMetricFamily(
        "cloudmatrix:exchange_wait_seconds",
        "Time that the rank waited, by the peer that arrived last; one series (all) for more than "
        f"{MOST_PEERS} peers [s]",
        labels=(*_EXPERT_LABELS, "peer"),
    )
    moved = CounterMetricFamily(
        "cloudmatrix:exchange_bytes",
        "Rows of the rank that the peer's experts read (rows), and results that the peer sent back for them (results); "
        f"one series (all) for more than {MOST_PEERS} peers [bytes]",
        labels=(*_EXPERT_LABELS, "peer", "what"),
    )
    sessions = CounterMetricFamily(
        "cloudmatrix:session_seconds",
        "Time of the rank's sessions, by part: from asking for a layer's results until the expert rank that answers "
        "last takes the rows (A2E), its computing (experts), from then until the results are added (E2A); without "
        "rounds with a rank of another host [s]",
        labels=(*_EXPERT_LABELS, "part"),
    )
    rounds = CounterMetricFamily(
        "cloudmatrix:session_rounds",
        "Rounds in cloudmatrix:session_seconds: layers times sessions",
        labels=_EXPERT_LABELS,
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
        for part, value in counted.sessions.parts.items():
            sessions.add_metric((*labels, part), value)
        rounds.add_metric(labels, counted.sessions.rounds)
    yield from (seconds, waits, moved, sessions, rounds)


def _by_peer(peers: Sequence[int], values: Sequence[float]) -> Iterable[tuple[str, float]]:
    """Value per peer; former peers keep their counters. Lists are sized for ranks that may join later."""
    shown = [peer for peer, value in enumerate(values) if value or peer in peers]
    if len(shown) > MOST_PEERS:
        return [(ALL, sum(values))]
    return [(str(peer), values[peer]) for peer in shown]

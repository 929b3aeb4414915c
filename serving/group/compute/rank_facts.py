"""Makes a rank's `ExpertFacts`: whole tables of small models, the largest entries of large ones."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from serving.values.expert_facts import ExchangeFacts, ExpertFacts, ExpertRows
from serving.values.expert_map import PARTS, ExpertMap

MOST_CELLS = 1024
"""Largest table [layer][expert] that is announced whole: about 5 KiB."""
MOST_NAMED = 32
"""Number of busiest and borrowed experts in the facts."""


def rank_shares(map_: ExpertMap) -> npt.NDArray[np.float64]:
    """Share of each expert's tokens by rank, `[layer, expert, rank]`: `split.rank_loads` as a product."""
    shares = np.zeros((len(map_.layers), len(map_.layers[0].homes), len(map_.slots)))
    for layer, one in enumerate(map_.layers):
        for expert, homes in enumerate(one.homes):
            for home in homes:
                shares[layer, expert, home.at.rank] += home.weight / PARTS
    return shares


class RankFacts:
    """Facts of a rank under one map.

    Args:
        map_: the latest one.
        number: the rank's own. own_slots: of a layer; those behind them hold experts of lost ranks.
        members: ranks that compute together.
        layer_names: of the layers with experts, as the model numbers them.
    """

    def __init__(
        self, map_: ExpertMap, number: int, own_slots: int, members: Sequence[int], layer_names: Sequence[str] = ()
    ) -> None:
        self._ranks, self._members, self._names = len(map_.slots), tuple(members), tuple(layer_names)
        self._shares = rank_shares(map_)
        contents = [map_.placement(layer)[number] for layer in range(len(map_.layers))]
        self._held = [tuple(one for one in slots[:own_slots] if one is not None) for slots in contents]
        self._borrowed = [
            (layer, one) for layer, slots in enumerate(contents) for one in slots[own_slots:] if one is not None
        ]

    def of(
        self, rows: npt.NDArray[np.uint64], epoch: int, map_version: int, exchange: ExchangeFacts | None = None
    ) -> ExpertFacts:
        """Facts now.

        Args:
            rows: `[layer, expert]` of this rank since it joined.
        """
        experts, whole = rows.shape[1], rows.size <= MOST_CELLS
        to_ranks = np.rint(np.einsum("le,ler->lr", rows.astype(np.float64), self._shares)).astype(np.int64)
        return ExpertFacts(
            epoch=epoch,
            map_version=map_version,
            members=self._members,
            ranks=self._ranks,
            experts=experts,
            to_ranks=_table(to_ranks),
            rows=_table(rows) if whole else (),
            busiest=() if whole else _busiest(rows),
            held=tuple(self._held) if whole else (),
            held_count=sum(map(len, self._held)),
            borrowed=tuple(self._borrowed[:MOST_NAMED]),
            borrowed_count=len(self._borrowed),
            exchange=exchange,
            layer_names=self._names,
        )


def _table(of: npt.NDArray[np.integer]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in of.tolist())


def _busiest(rows: npt.NDArray[np.uint64]) -> tuple[ExpertRows, ...]:
    flat, experts = rows.ravel(), rows.shape[1]
    order = np.argsort(flat, kind="stable")[::-1][:MOST_NAMED].tolist()
    return tuple(ExpertRows(at // experts, at % experts, int(flat[at])) for at in order if flat[at])

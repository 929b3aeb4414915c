"""Parts that make an instance a rank of a group: its window, its expert slots, the map it begins with."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hardware.errors import HardwareError
from serving.config.experts import ExpertsConfig
from serving.errors import EngineError, GroupError, ModelError
from serving.experts.core.first_map import opening_map
from serving.experts.live.native_table import native_table
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.live.compute import InstancePlace, RankPlace
from serving.instance.live.rank_window import RankWindow
from serving.model.forms import ProductForms
from serving.model.kv_cache import KvCache
from serving.model.model import DeepseekModel
from serving.model.native.layout import NativeLinear
from serving.model.native.rank_group import GroupPlace
from serving.model.slots.expert_slots import ExpertSlots, fill_all, make_slots
from serving.model.slots.expert_sources import expert_source
from serving.values.group import RankOffer

LAST_EPOCH = (1 << 64) - 1
"""A rank that leaves puts itself out of the group with it, so that no wait of its own holds it up."""


class RankParts:
    """Parts of one rank beside those of any instance.

    Args:
        model: with routed experts, or with absent ones.
        forms: those that it was loaded with, made anew.
    Raises: PlacementError if the model has no experts for so many ranks; HardwareError if there is no memory for slots.
    Effects: makes UB segments beside the instance's own; fills the slots.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        place: InstancePlace,
        model: DeepseekModel,
        folder: Path,
        forms: Callable[[], ProductForms],
    ) -> None:
        assert place.rank is not None
        self._rank: RankPlace = place.rank
        self._config = config
        self._model = model
        self._segment_path = place.segment_path
        self._source = source = expert_source(model, folder, forms)
        self.map = opening_map(model.config.n_routed_experts, self._rank.ranks, config.redundant, source.layers)
        number = self._rank.number
        self._slots: ExpertSlots = make_slots(config.slots, source, self.map.slots[number], self._beside("slots"))
        fill_all(self._slots, [self.map.placement(layer)[number] for layer in range(source.layers)])
        self._executor: NativeGroupExecutor | None = None
        self._windows: list[RankWindow] = []

    def executor(self, cache: KvCache, threads: int, max_rows: int) -> NativeGroupExecutor:
        """The executor of this rank, which is to `join`. Effects: makes the rank's window."""
        shapes = self._expert_shapes()
        made = NativeGroupExecutor(self._model, cache, threads=threads, max_rows=max_rows, expert_shapes=shapes)
        shape = made.window_shape(self._rank.ranks)
        self._windows = [RankWindow.create(self._beside("window"), shape, self._rank.number)]
        self._executor = made
        return made

    @property
    def slots(self) -> int:
        """Expert slots of a layer."""
        return self.map.slots[self._rank.number]

    @property
    def window_path(self) -> str:
        """Path of the rank's window, for its peers."""
        return str(self._windows[0].path)

    def join(self, offers: Sequence[RankOffer]) -> None:
        """Map the peers' windows; every step is one of the group from now on.

        Args:
            offers: of all ranks, this one's included.
        Raises: GroupError if they do not fit.
        """
        try:
            self._join(offers)
        except (HardwareError, EngineError, ModelError) as error:
            raise GroupError(f"rank {self._rank.number} cannot join its group: {error}") from error

    def _join(self, offers: Sequence[RankOffer]) -> None:
        assert self._executor is not None
        by_rank = sorted(offers, key=lambda offer: offer.rank)
        own = self._windows[0]
        for offer in by_rank:
            if offer.rank != self._rank.number:
                self._windows.append(RankWindow.attach(offer.window_path))
        peers = iter(self._windows[1:])
        windows = [own if offer.rank == self._rank.number else next(peers) for offer in by_rank]
        place = GroupPlace(
            rank=self._rank.number,
            windows=[window.memory for window in windows],
            processes=[offer.pid for offer in by_rank],
            slots=self._slots.table,
            expert_map=native_table(self.map, self._rank.number),
            map_version=self.map.version,
            cores=len(os.sched_getaffinity(0)),
            deadline_s=self._config.deadline_s,
        )
        self._executor.join(place)

    def leave(self) -> None:
        """End whatever this rank waits for; no step can be made any more."""
        if self._windows:
            self._windows[0].raise_epoch(LAST_EPOCH, 0)

    def close(self) -> None:
        """Give the memory back, when nothing computes any more."""
        for window in self._windows:
            window.close()
        self._slots.close()

    def _beside(self, what: str) -> Path:
        return self._segment_path.with_name(f"{self._segment_path.name}-{what}")

    def _expert_shapes(self) -> list[tuple[NativeLinear, NativeLinear]]:
        """Products of an expert that is here, for each layer: those of absent ones are of the same sizes and form."""
        table, found = self._slots.table, []
        for layer in range(self._source.layers):
            numbers = (self._slots.layout.number(layer, slot) for slot in range(self._slots.layout.slots))
            filled = [number for number in numbers if table.gate_up[number].out_features]
            found.append((table.gate_up[filled[0]], table.down[filled[0]]))
        return found

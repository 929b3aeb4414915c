"""Parts that make an instance a rank of a group: its window, its expert slots, the map it begins with."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardware.errors import HardwareError
from serving.config.experts import ExpertsConfig
from serving.errors import EngineError, ExpertError, GroupError, ModelError
from serving.experts.core.expert_map import ExpertMap
from serving.experts.core.first_map import group_shape, map_of_members, opening_map
from serving.experts.live.native_table import native_table
from serving.experts.live.rank_facts import RankFacts
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.live.compute import InstancePlace, RankPlace
from serving.instance.live.rank_window import RankWindow
from serving.model.forms import ProductForms
from serving.model.kv_cache import KvCache
from serving.model.model import DeepseekModel
from serving.model.native.layout import NativeLinear
from serving.model.native.rank_group import FIRST_EPOCH, GroupPlace
from serving.model.slots.expert_slots import ExpertSlots, fill_all, make_slots
from serving.model.slots.expert_sources import expert_source
from serving.values.expert_facts import ExpertFacts
from serving.values.group import RankOffer, RegroupOrder

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
        experts, ranks, number = model.config.n_routed_experts, self._rank.ranks, self._rank.number
        self._opening = opening_map(experts, ranks, config.redundant, source.layers)
        self.slots = group_shape(experts, ranks, config.redundant).slots[number]
        """Expert slots of a layer that have memory of their own."""
        reserve = self._opening.slots[number] - self.slots
        self._slots: ExpertSlots = make_slots(config.slots, source, self.slots, self._beside("slots"), reserve)
        fill_all(self._slots, self._contents(self._opening))
        self._executor: NativeGroupExecutor | None = None
        self._own: RankWindow | None = None
        self._peers: dict[int, tuple[int, RankWindow]] = {}
        """By rank: process and window."""
        self._borrowed: set[tuple[int, int]] = set()
        """Experts (layer, expert) that the reserve holds."""
        self._facts: RankFacts | None = None
        self._lock = threading.Lock()
        self.order: RegroupOrder | None = None
        """The last one that was followed: who computes together, or will as soon as its epoch begins."""

    def executor(self, cache: KvCache, threads: int, max_rows: int) -> NativeGroupExecutor:
        """The executor of this rank, which is to `join`. Effects: makes the rank's window."""
        shapes = self._expert_shapes()
        made = NativeGroupExecutor(self._model, cache, threads=threads, max_rows=max_rows, expert_shapes=shapes)
        shape = made.window_shape(self._rank.most)
        self._own = RankWindow.create(self._beside("window"), shape, self._rank.number)
        self._executor = made
        return made

    @property
    def window_path(self) -> str:
        """Path of the rank's window, for its peers."""
        assert self._own is not None
        return str(self._own.path)

    @property
    def raised(self) -> int:
        """Implements `GroupMember.raised`."""
        return self._own.epoch if self._own is not None and self.order is not None else 0

    def awaited(self) -> tuple[int, float] | None:
        """Implements `GroupMember.awaited`."""
        return None if self._executor is None else self._executor.awaited()

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        """Implements `GroupMember.begin`."""
        assert self._own is not None
        if epoch > self._own.epoch:
            self._own.raise_epoch(epoch, sum(1 << rank for rank in members))

    def follow(self, order: RegroupOrder) -> None:
        """Compute with these members from the order's epoch on. The first order joins the group.

        Experts of ranks that are missing are computed by the members, each in its reserve of slots.

        Raises: GroupError if they do not fit.
        """
        try:
            with self._lock:
                if self.order is None:
                    self._join(order)
                else:
                    self._regroup(order)
                self.order = order
        except (HardwareError, EngineError, ExpertError, ModelError) as error:
            raise GroupError(f"rank {self._rank.number} cannot follow its group: {error}") from error

    def _join(self, order: RegroupOrder) -> None:
        assert self._executor is not None
        assert self._own is not None
        windows: list[memoryview | None] = [None] * self._rank.most
        processes = [0] * self._rank.most
        for offer in order.offers:
            self._meet(offer)
            processes[offer.rank] = offer.pid
        for rank, (_, window) in self._peers.items():
            windows[rank] = window.memory
        windows[self._rank.number] = self._own.memory
        self._own.raise_epoch(FIRST_EPOCH, sum(1 << rank for rank in order.members))
        place = GroupPlace(
            rank=self._rank.number,
            windows=windows,
            processes=processes,
            slots=self._slots.table,
            expert_map=self._table(order),
            map_version=order.version,
            cores=len(os.sched_getaffinity(0)),
            deadline_s=self._config.deadline_s,
        )
        self._executor.join(place)

    def _regroup(self, order: RegroupOrder) -> None:
        assert self._executor is not None
        for offer in order.offers:
            if self._meet(offer):
                self._executor.set_peer(offer.rank, self._peers[offer.rank][1].memory, offer.pid)
        self._executor.set_map(order.version, self._table(order), order.epoch)

    def _meet(self, offer: RankOffer) -> bool:
        """Map a peer's window. Returns: False if it is this rank, or known. Effects: as it says."""
        known = self._peers.get(offer.rank)
        if offer.rank == self._rank.number or (known is not None and known[0] == offer.pid):
            return False
        self._peers[offer.rank] = offer.pid, RankWindow.attach(offer.window_path)
        return True

    def _table(self, order: RegroupOrder) -> NDArray[np.uint32]:
        """The members' map as the native step reads it. Effects: fills this rank's reserve as it says."""
        new = map_of_members(self._opening, frozenset(order.members), order.version)
        for layer, held in enumerate(self._contents(new)):
            for slot, expert in enumerate(held):
                if slot >= self.slots and expert is not None and (layer, expert) not in self._borrowed:
                    self._slots.fill(layer, slot, expert)
                    self._borrowed.add((layer, expert))
        self._slots.table.publish()
        self._facts = RankFacts(new, self._rank.number, self.slots, order.members)
        return native_table(new, self._rank.number)

    def _contents(self, of: ExpertMap) -> list[tuple[int | None, ...]]:
        return [of.placement(layer)[self._rank.number] for layer in range(self._source.layers)]

    def facts(self) -> ExpertFacts | None:
        """Where its rows go and what it holds; None before it has joined. Any thread; never waits for an order."""
        if self._facts is None or self._executor is None or self.order is None:
            return None
        executor = self._executor
        return self._facts.of(executor.rows_sent(), executor.epoch, executor.map_version)

    def leave(self) -> None:
        """End whatever this rank waits for; no step can be made any more."""
        if self._own is not None:
            self._own.raise_epoch(LAST_EPOCH, 0)

    def close(self) -> None:
        """Give the memory back, when nothing computes any more."""
        if self._own is not None:
            self._own.close()
        for _, window in self._peers.values():
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

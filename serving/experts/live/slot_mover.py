"""A rank's part in moves of experts: fetches, loads and switches of maps, as the mover's core orders them.

    FETCH     a record comes from a peer's slot, else from this rank's own source, into staging memory; paced
    LOAD      the record goes into the slot, which no map names; its checksum is looked at again
    SWITCH    between two steps: what was loaded becomes known to the native step, then the map

Copies are made by one thread, in pieces for which the interpreter's lock is let go. Every order is answered, a load
above all: its slot counts as unusable until then.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hardware.errors import HardwareError
from serving.errors import ExpertError, ServingError
from serving.experts.core.expert_map import ExpertMap
from serving.experts.core.mover import (
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFailed,
    MoveFetched,
    MoveLoaded,
    MoverEvent,
    MovesEnded,
)
from serving.experts.core.moves import ExpertMove
from serving.experts.live.copy_pace import CopyPace
from serving.experts.live.native_table import native_table
from serving.model.slots.expert_slots import ExpertSlots

logger = logging.getLogger(__name__)

_FAILURES = (ServingError, HardwareError, OSError, MemoryError)
_END_S = 10.0


class PeerRecords(Protocol):
    """Another rank's slots, to be read."""

    def record(self, layer: int, slot: int) -> memoryview:
        """The record of one slot; it may change at any time.

        Raises: ExpertError if it cannot be read.
        """
        ...


class MapSwitch(Protocol):
    """The native step's way to a new map."""

    def set_map(self, table: npt.NDArray[np.uint32], version: int) -> None:
        """Use another map from the next step on. Called between two steps."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedMap:
    """A map as one rank's native step reads it."""

    map: ExpertMap
    table: npt.NDArray[np.uint32]


class SlotMover:
    """Carries out orders for one rank.

    Args:
        rank: its number.
        slots: filled with the first map's experts.
        report: takes events; called by the thread that copies.
        bytes_per_s: how fast experts are fetched.
    Effects: starts a thread.
    """

    def __init__(self, rank: int, slots: ExpertSlots, report: Callable[[MoverEvent], None], bytes_per_s: float) -> None:
        self.rank = rank
        self._slots, self._report = slots, report
        self._peers: Mapping[int, PeerRecords] = {}
        self._staged: dict[ExpertMove, memoryview | None] = {}
        self._orders: SimpleQueue[FetchExpert | LoadExpert | MovesEnded | None] = SimpleQueue()
        self._given_up = threading.Event()  # set from the end of moves until their last order is answered
        self._pace = CopyPace(bytes_per_s, self._given_up.wait)
        self._prepared: PreparedMap | None = None
        self._thread = threading.Thread(target=self._run, name=f"expert-slots-{rank}", daemon=True)
        self._thread.start()

    def join(self, peers: Mapping[int, PeerRecords]) -> None:
        """Read experts of these ranks from now on; those of others come from this rank's own source."""
        self._peers = dict(peers)

    def take(self, effect: FetchExpert | LoadExpert | MovesEnded) -> None:
        """Carry out an order, after those before it. What is for another rank is passed over. Any thread."""
        if isinstance(effect, MovesEnded):
            self._given_up.set()
        elif effect.move.to.rank != self.rank:
            return
        self._orders.put(effect)

    def prepare(self, new: ExpertMap) -> PreparedMap:
        """A map as this rank's native step reads it; takes the longer the more layers differ from the one before."""
        before = self._prepared
        table = native_table(new, self.rank, None if before is None else (before.map, before.table))
        self._prepared = PreparedMap(new, table)
        return self._prepared

    def switch(self, prepared: PreparedMap, group: MapSwitch) -> MapSwitched:
        """Use a map. On the thread that computes steps, between two of them.

        Returns: what this rank tells whoever asked for the switch.
        """
        self._slots.table.publish()
        group.set_map(prepared.table, prepared.map.version)
        return MapSwitched(prepared.map.version)

    def close(self) -> None:
        """End the thread; what was ordered and not begun is not done."""
        self._given_up.set()
        self._orders.put(None)
        self._thread.join(_END_S)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            match order:
                case FetchExpert(move):
                    self._report(self._answer(self._fetch, move, MoveFetched(move)))
                case LoadExpert(move):
                    self._report(self._answer(self._load, move, MoveLoaded(move)))
                case MovesEnded():
                    self._staged.clear()
                    self._slots.forget()
                    self._given_up.clear()

    def _answer(self, work: Callable[[ExpertMove], None], move: ExpertMove, done: MoverEvent) -> MoverEvent:
        try:
            work(move)
        except _FAILURES as error:
            logger.warning(
                "expert %d of layer %d does not come to rank %d: %s", move.expert, move.layer, self.rank, error
            )
            return MoveFailed(move, str(error))
        return done

    def _fetch(self, move: ExpertMove) -> None:
        record = None if move.source is None else self._record(move)
        try:
            self._staged[move] = self._slots.stage(move.layer, move.expert, record, self._pace)
        except ExpertError as error:
            if record is None or self._given_up.is_set():
                raise
            logger.warning("%s; it is read from this rank's own source instead", error)
            self._staged[move] = self._slots.stage(move.layer, move.expert, None, self._pace)

    def _record(self, move: ExpertMove) -> memoryview | None:
        """The source's record; None if it cannot be had, or this rank finds the expert where the source does."""
        assert move.source is not None
        peer = self._peers.get(move.source.rank)
        try:
            return None if peer is None else peer.record(move.layer, move.source.slot)
        except ExpertError as error:
            logger.warning("rank %d cannot be read: %s", move.source.rank, error)
            return None

    def _load(self, move: ExpertMove) -> None:
        if move not in self._staged and move.source is not None:
            self._slots.empty(move.layer, move.to.slot)
            raise ExpertError(f"layer {move.layer}, expert {move.expert}: was not fetched")
        self._slots.fill(move.layer, move.to.slot, move.expert, self._staged.pop(move, None))

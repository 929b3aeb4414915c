"""A rank's part in moves of experts: fetches, loads and switches of maps on command of the mover's core.

    FETCH     copy a record from a peer's slot, in shared memory or over a connection, else from this rank's own source,
              to staging memory; paced
    LOAD      copy the record to the slot, which no map names; done when the native step uses the new slot table
    SWITCH    pass the map to the native step; done when all ranks use it

One thread makes the copies, in pieces that release the interpreter's lock. Every command gets a response, above all a
load, whose slot counts as unusable until then.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hardware.errors import HardwareError
from serving.errors import ExpertError, PlacementError, ServingError
from serving.model.native.layout import MAP_MASKED
from serving.model.slots.expert_record import Pace
from serving.model.slots.expert_slots import ExpertSlots
from serving.model.slots.slot_region import MOST_SLOTS
from serving.values.expert_map import (
    PARTS,
    ExpertMap,
    ExpertMove,
    ExpertSlot,
    FetchExpert,
    Held,
    LoadExpert,
    MapSwitched,
    MoveAnswer,
    MoveFailed,
    MoveFetched,
    MoveLoaded,
    MoveOrder,
    MovesEnded,
    MovesStopped,
    SwitchMap,
)

logger = logging.getLogger(__name__)

_FAILURES = (ServingError, HardwareError, OSError, MemoryError)
_END_S = 10.0
_LOOK_S = 0.002
"""Interval of checks whether a map is in use [s]: about a step of the smallest model."""


class PeerRecords(Protocol):
    """Read access to another rank's slots."""

    @property
    def paced(self) -> bool:
        """Whether `record` makes a copy, over a network, and calls the pace; else it returns the peer's memory."""
        ...

    def record(self, layer: int, slot: int, pace: Pace) -> memoryview:
        """The record of one slot; the peer's memory may change at any time.

        Raises: ExpertError if it cannot be read; any exception from `pace`.
        """
        ...


class MapUser(Protocol):
    """The native step of a rank in a group. Every method may be called from any thread."""

    def set_map(self, version: int, expert_map: npt.NDArray[np.uint32]) -> None:
        """Set the next map, which this rank uses from its next step on.

        Raises: ServingError if it names slots that are empty.
        """
        ...

    @property
    def map_version(self) -> int:
        """Version of the oldest map that a rank of the group uses."""
        ...

    def wake(self) -> None:
        """End a wait for peers' steps soon, so that loaded slots are published."""
        ...


class SlotMover:
    """Carries out commands for one rank.

    Args:
        rank: its number.
        slots: filled with the first map's experts.
        held: the experts in the rank's own slots.
        report: takes events; called by the copying thread, and for loads by the computing thread; must not block.
        bytes_per_s: rate of fetches.
    Effects: the first `join` starts a thread.
    """

    def __init__(
        self, rank: int, slots: ExpertSlots, held: Held, report: Callable[[MoveAnswer], None], bytes_per_s: float
    ) -> None:
        self.rank = rank
        self._held = [list(row) for row in held]
        self._slots, self._report = slots, report
        self._user: MapUser | None = None
        self._peers: Mapping[int, PeerRecords] = {}
        self._staged: dict[ExpertMove, memoryview | None] = {}
        self._orders: SimpleQueue[MoveOrder | None] = SimpleQueue()
        self._given_up = threading.Event()  # set from the end of moves until their last order is answered
        self._pace = CopyPace(bytes_per_s, self._given_up.wait)
        self._before: tuple[ExpertMap, Table] | None = None
        self._asked: int | None = None  # version that is to come into use
        self._thread = threading.Thread(target=self._run, name=f"expert-slots-{rank}", daemon=True)

    def join(self, user: MapUser, peers: Mapping[int, PeerRecords]) -> None:
        """Join a group. Call it again whenever its ranks have changed.

        Args:
            peers: ranks whose slots can be read; experts of others are read from this rank's own source.
        """
        self._user, self._peers = user, dict(peers)
        if self._thread.ident is None:
            self._thread.start()

    @property
    def held(self) -> Held:
        """Contents of the rank's own slots; one that is being loaded counts as empty. Any thread."""
        return tuple(tuple(row) for row in self._held)

    def take(self, order: MoveOrder) -> None:
        """Carry out a command after the earlier ones. Ignores commands for other ranks. Any thread."""
        if isinstance(order, MovesEnded):
            self._given_up.set()
        elif isinstance(order, FetchExpert | LoadExpert) and order.move.to.rank != self.rank:
            return
        self._orders.put(order)

    def close(self) -> None:
        """End the thread, without carrying out commands that have not started."""
        self._given_up.set()
        self._orders.put(None)
        if self._thread.ident is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=None if self._asked is None else _LOOK_S)
            except Empty:
                self._look()
                continue
            if order is None:
                return
            self._do(order)

    def _do(self, order: MoveOrder) -> None:
        match order:
            case FetchExpert(move):
                self._try(self._fetch, move)
            case LoadExpert(move):
                self._try(self._load, move)
            case SwitchMap(new):
                self._switch(new)
            case MovesEnded():
                self._staged.clear()
                self._slots.forget()
                self._slots.table.publish()  # of slots that no map names: what was loaded is known before this is said
                self._given_up.clear()
                self._report(MovesStopped(self.rank, self.held))

    def _switch(self, new: ExpertMap) -> None:
        """Pass the map to the native step. If it refuses the map, the mover's deadline ends the moves."""
        assert self._user is not None, "a rank without a group has no maps to switch"
        if self._before is not None and new.version <= self._before[0].version:  # a shell that had no answer asks again
            self._asked = max(self._asked or 0, new.version)
            return
        table = native_table(new, self.rank, self._before)
        try:
            self._user.set_map(new.version, table)
            self._asked, self._before = new.version, (new, table)
        except ServingError as error:
            logger.error("rank %d cannot use expert map %d: %s", self.rank, new.version, error)
        self._user.wake()

    def _look(self) -> None:
        """Report a map that has come into use."""
        assert self._user is not None
        if self._asked is not None and self._user.map_version >= self._asked:
            asked, self._asked = self._asked, None
            self._report(MapSwitched(asked))

    def _try(self, work: Callable[[ExpertMove], None], move: ExpertMove) -> None:
        try:
            work(move)
        except _FAILURES as error:
            logger.warning("rank %d cannot copy expert %d of layer %d: %s", self.rank, move.expert, move.layer, error)
            self._report(MoveFailed(move, str(error)))

    def _fetch(self, move: ExpertMove) -> None:
        record, pace = (None, self._pace) if move.source is None else self._record(move.source, move.layer)
        try:
            self._staged[move] = self._slots.stage(move.layer, move.expert, record, pace)
        except ExpertError as error:
            if record is None or self._given_up.is_set():
                raise
            logger.warning("%s; it is read from this rank's own source instead", error)
            self._staged[move] = self._slots.stage(move.layer, move.expert, None, self._pace)
        self._report(MoveFetched(move))

    def _record(self, at: ExpertSlot, layer: int) -> tuple[memoryview | None, Pace | None]:
        """The source's record; None if it is not readable, or both ranks read experts from the same source. And the
        pace of its copy."""
        peer = self._peers.get(at.rank)
        try:
            if peer is not None:
                return peer.record(layer, at.slot, self._pace), None if peer.paced else self._pace
        except ExpertError as error:
            if self._given_up.is_set():
                raise
            logger.warning("rank %d cannot be read: %s", at.rank, error)
        return None, self._pace

    def _load(self, move: ExpertMove) -> None:
        row = self._held[move.layer]
        row[move.to.slot] = None
        if move not in self._staged and move.source is not None:
            self._slots.empty(move.layer, move.to.slot)
            raise ExpertError(f"layer {move.layer}, expert {move.expert}: not fetched")
        record = self._staged.pop(move, None)
        self._slots.fill(move.layer, move.to.slot, move.expert, record, lambda: self._report(MoveLoaded(move)))
        row[move.to.slot] = move.expert
        if self._user is not None:
            self._user.wake()


# Byte rate of copies that must not disturb concurrent steps.


class CopyPace:
    """Wait after each piece of a copy according to the rate. One thread at a time.

    A pause is not compensated by a higher rate: the rate holds over every interval, up to one piece.

    Args:
        bytes_per_s: above 0.
        wait: waits for a time [s]; returns True if the copy is to be given up.
        clock: monotonic time [s].
    """

    def __init__(
        self, bytes_per_s: float, wait: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s, self._wait, self._clock = bytes_per_s, wait, clock
        self._free_at = 0.0

    def __call__(self, nbytes: int) -> None:
        """Wait after a copied piece.

        Raises: ExpertError if the copy is to be given up.
        """
        now = self._clock()
        self._free_at = max(now, self._free_at) + nbytes / self._bytes_per_s
        if self._wait(self._free_at - now):
            raise ExpertError("the move was abandoned")


# Expert map as the native step reads it.

_RANK_SHIFT = 16

Table = npt.NDArray[np.uint32]


def native_table(map_: ExpertMap, rank: int, before: tuple[ExpertMap, Table] | None = None) -> Table:
    """Slots that a rank sends its tokens to: `[expert layer][position mod 16][expert] uint32`.

    An entry is `rank << 16 | slot`, the slot numbered over all layers of the rank that holds it; `MAP_MASKED` = none.

    Args:
        rank: whose table it is; each begins at its own place in the rotation.
        before: another map with this rank's table of it: layers that are equal are taken from there.
    Raises: PlacementError if a rank has more slots than an entry can name.
    """
    if max(map_.slots) * len(map_.layers) > MOST_SLOTS or len(map_.slots) > MAP_MASKED >> _RANK_SHIFT:
        raise PlacementError(f"{len(map_.slots)} ranks, {max(map_.slots)} slots in {len(map_.layers)} layers: too many")
    table = np.empty((len(map_.layers), PARTS, len(map_.layers[0].homes)), np.uint32)
    for layer, one in enumerate(map_.layers):
        if before is not None and before[0].slots == map_.slots and before[0].layers[layer] == one:
            table[layer] = before[1][layer]
        else:
            rows = map_.rotation(layer, rank)
            table[layer] = [[MAP_MASKED if at is None else _entry(map_, layer, at) for at in row] for row in rows]
    return table


def _entry(map_: ExpertMap, layer: int, at: ExpertSlot) -> int:
    return at.rank << _RANK_SHIFT | (layer * map_.slots[at.rank] + at.slot)

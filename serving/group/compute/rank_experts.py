"""Experts of one rank: their slots, the map in use, and moves. Imports no torch."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hardware.units import MIB
from serving.config.experts import ExpertsConfig
from serving.errors import GroupError
from serving.group.compute.slot_mover import PeerRecords, SlotMover, native_table
from serving.group.core.group_map import contents_of, opening_map
from serving.model.native.layout import NativeLinear
from serving.model.native.rank_group import RankGroup
from serving.model.slots.expert_slots import ExpertSlots, RoutedExperts, SlotTable, fill_all, make_slots, shapes_of
from serving.model.slots.slot_region import PeerSlots
from serving.values.expert_map import (
    PARTS,
    CountRows,
    ExchangeFacts,
    ExpertFacts,
    ExpertMap,
    ExpertOrder,
    ExpertRows,
    FetchExpert,
    Held,
    LoadExpert,
    MapSwitched,
    MoveAnswer,
    MoveOrder,
    MovesEnded,
    MovesStopped,
    RankEvent,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import RankOffer
from serving.values.instances import RankPlace

Answered = Callable[[tuple[RankEvent, ...]], None]
_NONE: Mapping[int, PeerRecords] = MappingProxyType({})


class RankExperts:
    """Slots of a rank, own ones and the reserve after them, and changes to them; a rank without experts has none.

    Args:
        routed: the model's.
        path: of the segment of copied slots.
    Raises: PlacementError if the model has no experts for so many ranks; HardwareError if there is no memory.
    Effects: fills the own slots according to `opening_map`.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        place: RankPlace,
        routed: RoutedExperts,
        path: Path,
    ) -> None:
        self._number = place.number
        self._source = source = routed.source
        self._layer_names = routed.layer_names
        self.experts = routed.experts
        """Of a layer."""
        self.gate = routed.gate
        opening = _opening(config, place, routed)
        self.own = len(opening[0])
        """Slots of a layer that have memory of their own; 0 without experts."""
        self._slots: ExpertSlots = make_slots(config.slots, source, self.own, path, self.experts)
        fill_all(self._slots, opening)
        self._open = _OpenOrders()
        self._mover = SlotMover(self._number, self._slots, opening, self._open.on, config.move_mib_per_s * MIB)
        self._group: RankGroup | None = None
        self._borrowed: set[tuple[int, int]] = set()
        """Experts (layer, expert) that the reserve holds."""
        self._map: ExpertMap | None = None
        """The latest map that was used."""
        self._given: dict[int, ExpertMap] = {}
        """Maps of moves by version, until the mover's thread has switched to them."""
        self._facts: RankFacts | None = None
        self._lock = threading.Lock()
        self._small_lock = threading.Lock()
        """Of `_given`; never held for long."""
        self.expert_bytes = max(self._slots.layout.room)
        """Weights of one expert, of the layer where they are largest; 0 where slots point to them."""
        self.offer = msgspec.msgpack.encode(self._slots.offer) if self._slots.offer is not None else b""
        """Access to the own slots for peers; empty if peers find the same experts themselves."""

    @property
    def table(self) -> SlotTable:
        """Arrays of the slots."""
        return self._slots.table

    @property
    def held(self) -> Held:
        """Contents of the own slots."""
        return self._mover.held

    @property
    def version(self) -> int:
        """Version of the latest map that this rank received; 0 = none."""
        with self._small_lock:
            newest = max(self._given, default=0)
        return max(newest, self._map.version) if self._map is not None else newest

    def join(self, group: RankGroup, offers: Sequence[RankOffer], far: Mapping[int, PeerRecords] = _NONE) -> None:
        """Join a group. Call it again whenever the members have changed.

        Args:
            offers: of members on this node.
            far: slots of members on other nodes, by rank; not used if this node has all experts, packed, in memory.
        """
        self._group = group
        near = {one.rank: PeerSlots.of(one.slots) for one in offers if one.rank != self._number and one.slots}
        self._mover.join(self, near if self._source.in_place else near | dict(far))

    def prepare(self, new: ExpertMap) -> NDArray[np.uint32]:
        """A regrouping's map as a table of the native step, which must be passed to it next.

        Effects: fills the reserve according to the map, and publishes the slots.
        Raises: ExpertError, ModelError.
        """
        with self._lock:
            return self._prepare(new)

    def carry_out(self, orders: Sequence[ExpertOrder], answered: Answered) -> None:
        """Carry out commands of a shell's mover.

        Args:
            answered: called once, from any thread, when all commands are done, have failed, or were ended by
                `MovesEnded`.
        """
        counted = [self._counted() for one in orders if isinstance(one, CountRows)]
        mine = [one for one in orders if not isinstance(one, CountRows) and self._is_mine(one)]
        if not mine:
            answered(tuple(counted))
            return
        self._open.add(mine, answered)
        with self._small_lock:
            self._given |= {one.map.version: one.map for one in mine if isinstance(one, SwitchMap)}
        for order in mine:
            self._mover.take(order)

    def set_map(self, version: int, expert_map: NDArray[np.uint32]) -> None:
        """Implements `MapUser.set_map`."""
        assert self._group is not None
        with self._lock:
            with self._small_lock:
                given = self._given.get(version)
            if given is None:
                raise GroupError(f"expert map {version} is older than the one that the group was formed with")
            self._group.set_map(version, expert_map)
            self._use(given)

    @property
    def map_version(self) -> int:
        """Version of the oldest map that a rank of the group uses."""
        return self._group.map_version if self._group is not None else 0

    def wake(self) -> None:
        """Implements `MapUser.wake`."""
        assert self._group is not None
        self._group.wake()

    def give_back(self) -> None:
        """Empty reserve slots that no map names. Call it periodically, from any thread; never waits."""
        if not self._borrowed or not self._lock.acquire(blocking=False):
            return
        try:
            if self._map is None or self.map_version < self.version:
                return
            gone = self._borrowed - set(self._borrowing(self._map))
            for layer, expert in gone:
                self._slots.empty(layer, self.own + expert)
            self._borrowed -= gone
            if gone:
                self._slots.table.publish()
                self._slots.forget()
        finally:
            self._lock.release()

    def facts(self) -> ExpertFacts | None:
        """Destinations of rows and contents of slots; None before it has joined. Any thread; never blocks."""
        group, facts = self._group, self._facts
        if group is None or facts is None:
            return None
        found = facts.of(group.rows_sent(), group.epoch, self.map_version, group.exchanged())
        return msgspec.structs.replace(found, masked_rows=group.masked_rows)

    def shapes(self) -> list[tuple[NativeLinear, NativeLinear]]:
        """Products of one expert of each layer, for a model without them; they must not be computed with."""
        if self.own:
            table, layout, found = self._slots.table, self._slots.layout, []
            for layer in range(self._source.layers):
                numbers = (layout.number(layer, slot) for slot in range(layout.slots))
                filled = [number for number in numbers if table.gate_up[number].out_features]
                found.append((table.gate_up[filled[0]], table.down[filled[0]]))
            return found
        return shapes_of(self._source)

    def close(self) -> None:
        """Release the memory. No step may be running."""
        self._mover.close()
        self._slots.close()

    def _prepare(self, new: ExpertMap) -> NDArray[np.uint32]:
        for layer, expert in self._borrowing(new):
            if (layer, expert) not in self._borrowed:
                self._slots.fill(layer, self.own + expert, expert)
                self._borrowed.add((layer, expert))
        self._slots.table.publish()
        table = native_table(new, self._number)
        self._use(new)
        return table

    def _use(self, new: ExpertMap) -> None:
        self._map = new
        with self._small_lock:
            self._given = {version: one for version, one in self._given.items() if version > new.version}
        members = [rank for rank, slots in enumerate(new.slots) if slots]
        self._facts = RankFacts(new, self._number, self.own, members, self._layer_names)

    def _borrowing(self, of: ExpertMap) -> list[tuple[int, int]]:
        """Experts (layer, expert) that a map puts into this rank's reserve."""
        return [
            (layer, expert)
            for layer, one in enumerate(of.layers)
            for expert, homes in enumerate(one.homes)
            if any(home.at.rank == self._number and home.at.slot >= self.own for home in homes)
        ]

    def _counted(self) -> RowsCounted:
        group = self._group
        if group is None:
            return RowsCounted(self._number, ())
        return RowsCounted(self._number, tuple(map(tuple, group.rows_sent().tolist())), group.exchanged())

    def _is_mine(self, order: MoveOrder) -> bool:
        return not isinstance(order, FetchExpert | LoadExpert) or order.move.to.rank == self._number


def _opening(config: ExpertsConfig, place: RankPlace, routed: RoutedExperts) -> Held:
    """Contents of a rank's own slots, [layer][slot], in the map with which its group starts."""
    if not place.role.has_experts:
        return ((),) * routed.source.layers
    count = place.ranks if place.expert_count is None else place.expert_count
    index = place.number if place.expert_index is None else place.expert_index
    return contents_of(opening_map(routed.experts, count, config.redundant, routed.source.layers), index % count)


class _Waiting:
    """Commands that were given together, and their events."""

    def __init__(self, orders: Sequence[MoveOrder], answered: Answered) -> None:
        self._open = list(orders)
        self.answered = answered
        self.events: list[RankEvent] = []

    @property
    def done(self) -> bool:
        """Whether all events have arrived."""
        return not self._open

    @property
    def awaits_the_end(self) -> bool:
        """Whether the end of moves is among the commands."""
        return any(isinstance(one, MovesEnded) for one in self._open)

    def on(self, event: MoveAnswer) -> None:
        """Take an event. The end of moves completes all earlier commands."""
        left = [one for one in self._open if not _answers(event, one)]
        if len(left) < len(self._open):
            self.events.append(event)
        self._open = [] if isinstance(event, MovesStopped) else left


class _OpenOrders:
    """Commands whose events are awaited, in the order in which they were given. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []

    def add(self, orders: Sequence[MoveOrder], answered: Answered) -> None:
        """Await the events of these commands."""
        with self._lock:
            self._waiting.append(_Waiting(orders, answered))

    def on(self, event: MoveAnswer) -> None:
        """Take an event, and report commands that are complete."""
        with self._lock:
            for one in self._concerned(event):
                one.on(event)
            done = [one for one in self._waiting if one.done]
            self._waiting = [one for one in self._waiting if not one.done]
        for one in done:
            one.answered(tuple(one.events))

    def _concerned(self, event: MoveAnswer) -> list[_Waiting]:
        """Entries that may wait for an event: the end of moves concerns only earlier commands."""
        if not isinstance(event, MovesStopped):
            return self._waiting
        ends = (number for number, one in enumerate(self._waiting, 1) if one.awaits_the_end)
        return self._waiting[: next(ends, 0)]


def _answers(event: MoveAnswer, order: MoveOrder) -> bool:
    match event:
        case MapSwitched(version):
            return isinstance(order, SwitchMap) and order.map.version <= version
        case MovesStopped():
            return isinstance(order, MovesEnded)
        case _:
            return isinstance(order, FetchExpert | LoadExpert) and order.move == event.move


# Makes a rank's `ExpertFacts`: whole tables of small models, the largest entries of large ones.

MOST_CELLS = 1024
"""Largest table [layer][expert], and list of held experts, that is announced whole: about 5 KiB."""
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
        self._masked_count = map_.masked_count
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
        held_count = sum(map(len, self._held))
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
            held=tuple(self._held) if held_count <= MOST_CELLS else (),
            held_count=held_count,
            borrowed=tuple(self._borrowed[:MOST_NAMED]),
            borrowed_count=len(self._borrowed),
            exchange=exchange,
            layer_names=self._names,
            masked_count=self._masked_count,
        )


def _table(of: npt.NDArray[np.integer]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in of.tolist())


def _busiest(rows: npt.NDArray[np.uint64]) -> tuple[ExpertRows, ...]:
    flat, experts = rows.ravel(), rows.shape[1]
    order = np.argsort(flat, kind="stable")[::-1][:MOST_NAMED].tolist()
    return tuple(ExpertRows(at // experts, at % experts, int(flat[at])) for at in order if flat[at])

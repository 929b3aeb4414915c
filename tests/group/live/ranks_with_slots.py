"""Ranks with real slots in one process, whose native step only reads the tables."""

import ctypes
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from hardware.ub.copy import checksum
from serving.errors import EngineError
from serving.group.compute.slot_mover import SlotMover, Table, native_table
from serving.group.core.group_map import contents_of
from serving.group.core.mover import ExpertMover, MoverEffect, MoverEvent, MoverTick
from serving.model.native.layout import MAP_MASKED, NativeLinear
from serving.model.slots.expert_slots import CopiedSlots, ExpertSlots, MappedSlots, fill_all
from serving.model.slots.slot_region import PeerSlots, SlotLayout, SlotRegion
from serving.values.expert_map import ExpertMap, Held, MapSwitched, MovesEnded
from tests.model.slots.experts import MadeExperts

PATIENCE_S = 60.0


class Rank:
    """One rank: slots, their mover, and maps as the native step has them."""

    def __init__(
        self, rank: int, slots: ExpertSlots, held: Held, events: "SimpleQueue[MoverEvent]", bytes_per_s: float
    ) -> None:
        self.slots = slots
        self.mover = SlotMover(rank, slots, held, events.put, bytes_per_s)
        self.table: Table | None = None
        self.next: tuple[int, Table] | None = None
        self.map_version = 0

    def set_map(self, version: int, expert_map: Table) -> None:
        """Set the map, like the native step."""
        assert version > self.map_version
        for entry in np.unique(expert_map).tolist():
            if entry >> 16 == self.mover.rank:
                assert self.slots.table.gate_up[entry & 0xFFFF].out_features, "a map that names an empty slot"
        self.next = version, expert_map

    def wake(self) -> None:
        """Do nothing: steps run all the time."""

    def bytes_at(self, number: int) -> tuple[int, int]:
        """Checksums of the memory that a slot's structs point to."""
        return _seen(self.slots.table.gate_up[number]), _seen(self.slots.table.down[number])


class IdleRank:
    """A rank between two steps, which publishes as soon as it is woken."""

    map_version = 1

    def __init__(self, slots: ExpertSlots) -> None:
        self._slots = slots

    def set_map(self, version: int, expert_map: Table) -> None:
        """Refuse the map: this rank is alone."""
        raise EngineError("no group")

    def wake(self) -> None:
        """Wake like the native step, which then restarts."""
        self._slots.table.publish()


class RanksWithSlots:
    """A group that executes a mover's commands, with a step between any two events.

    Args:
        first: the initial map.
        mapped: ranks whose slots are mapped; those of the others are copied.
    """

    def __init__(
        self, folder: Path, first: ExpertMap, mapped: frozenset[int] = frozenset(), bytes_per_s: float = 1e12
    ) -> None:
        self.source = MadeExperts(len(first.layers))
        self.events: SimpleQueue[MoverEvent] = SimpleQueue()
        self.ranks: list[Rank] = []
        self._wanted = {}
        for layer, one in enumerate(first.layers):
            for expert in range(len(one.homes)):
                made = self.source.expert(layer, expert)
                self._wanted[layer, expert] = checksum(made.gate_up.packed), checksum(made.down.packed)
        self.ended: list[MovesEnded] = []
        for rank, count in enumerate(first.slots):
            layout = SlotLayout.of(count, [self.source.room(layer) for layer in range(self.source.layers)])
            slots: ExpertSlots = MappedSlots(self.source, count)
            if rank not in mapped:
                slots = CopiedSlots(SlotRegion(folder / f"rank{rank}", layout), self.source)
            held = contents_of(first, rank)
            fill_all(slots, held)
            self.ranks.append(Rank(rank, slots, held, self.events, bytes_per_s))
        for rank, one_rank in enumerate(self.ranks):
            offers = {other: self.ranks[other].slots.offer for other in range(len(self.ranks)) if other != rank}
            one_rank.mover.join(one_rank, {other: PeerSlots(offer) for other, offer in offers.items() if offer})
            one_rank.set_map(first.version, native_table(first, rank))
        self._switched: Counter[int] = Counter()
        self.step()

    def close(self) -> None:
        """End threads, and remove regions."""
        for one in self.ranks:
            one.mover.close()
            one.slots.close()

    def run(self, mover: ExpertMover) -> None:
        """Drive a mover until it has finished."""
        self.take(mover.start(time.monotonic()))
        end = time.monotonic() + PATIENCE_S
        while not self.ended:
            assert time.monotonic() < end, "the moves do not end"
            wake = mover.next_wake()
            if self.events.empty() and wake is not None and wake <= time.monotonic():
                self.take(mover.on(MoverTick(), time.monotonic()))
            elif not self.events.empty():
                event = self.events.get()
                if not isinstance(event, MapSwitched) or self._by_all(event):
                    self.take(mover.on(event, time.monotonic()))
            else:
                time.sleep(1e-4)
            self.step()

    def take(self, effects: Iterable[MoverEffect]) -> None:
        """Pass on the mover's commands."""
        for effect in effects:
            if isinstance(effect, MovesEnded):
                self.ended.append(effect)
            for one in self.ranks:
                one.mover.take(effect)

    def _by_all(self, event: MapSwitched) -> bool:
        self._switched[event.version] += 1
        return self._switched[event.version] == len(self.ranks)

    def step(self) -> None:
        """Publish, use the latest map that all have, and check that every slot it names holds its expert."""
        for one in self.ranks:
            one.slots.table.publish()
        versions = [one.next[0] if one.next else one.map_version for one in self.ranks]
        for one in self.ranks:
            if one.next and one.next[0] == min(versions):
                one.map_version, one.table = one.next
                one.next = None
        for one in self.ranks:
            assert one.table is not None
            for layer in range(one.table.shape[0]):
                for expert in range(one.table.shape[2]):
                    for entry in np.unique(one.table[layer, :, expert]).tolist():
                        assert entry != MAP_MASKED
                        found = self.ranks[entry >> 16].bytes_at(entry & 0xFFFF)
                        assert found == self._wanted[layer, expert], "a token met wrong weights"


def _seen(linear: NativeLinear) -> int:
    assert linear.out_features == 4, "an empty slot"
    return checksum(memoryview((ctypes.c_char * MadeExperts.NBYTES).from_address(linear.packed)).cast("B"))

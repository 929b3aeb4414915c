"""A group of ranks that compute for real, whose experts a shell moves meanwhile."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

from serving.experts.core.deepseek import GlobalPlacement
from serving.experts.core.first_map import contents_of, first_map, group_shape
from serving.experts.core.mover import ExpertMover, MoverEffect, MoverEvent, MoverTick
from serving.experts.core.moves import MoveRound, move_rounds, slots_of
from serving.experts.core.slot_ledger import SlotLedger
from serving.experts.live.native_table import native_table
from serving.experts.live.slot_mover import SlotMover
from serving.model.slots.expert_slots import ExpertSlots, fill_all, make_slots
from serving.model.slots.expert_sources import LoadedExperts
from serving.model.slots.slot_region import PeerSlots
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import MapSwitched, MovesEnded
from tests.instance.rank_threads import IDLE_S, RankThreads


class MovingGroup:
    """Slots and movers of a group's ranks, and the shell's part: rounds of random moves until it is told to stop.

    Args:
        group: joined with other slots before; takes these instead.
        mapped: ranks whose slots are mapped; those of the others are copied.
    """

    def __init__(self, group: RankThreads, folder: Path, mapped: Sequence[int], seed: int) -> None:
        self._random = Random(seed)
        self._group = group
        shape = group_shape(group.experts, group.ranks, redundant=1)
        self._ledger = SlotLedger(first_map(shape, group.experts, group.layers, GlobalPlacement()))
        self._events: SimpleQueue[MoverEvent] = SimpleQueue()
        self._switched: Counter[int] = Counter()
        self._stopped = threading.Event()
        self.ended: list[MovesEnded] = []
        self.moved = 0
        source = LoadedExperts(group.model)
        self.slots: list[ExpertSlots] = []
        for rank, count in enumerate(shape.slots):
            slots = make_slots("mapped" if rank in mapped else "copied", source, count, folder / f"rank{rank}")
            fill_all(slots, contents_of(self.map, rank))
            self.slots.append(slots)
            table = native_table(self.map, rank)
            group.executors[rank].join(replace(group.places[rank], slots=slots.table, expert_map=table))
        self._movers = [
            SlotMover(rank, slots, contents_of(self.map, rank), self._events.put, 1e9)
            for rank, slots in enumerate(self.slots)
        ]
        for rank, mover in enumerate(self._movers):
            offers = {other: slots.offer for other, slots in enumerate(self.slots) if other != rank}
            peers = {other: PeerSlots(offer) for other, offer in offers.items() if offer}
            mover.join(group.executors[rank], peers)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def map(self) -> ExpertMap:
        """The map in use."""
        return self._ledger.map

    def stop(self) -> None:
        """Move nothing any more; the ranks, which are idle, have taken up whatever map all have got."""
        self._stopped.set()
        self._thread.join()
        for mover in self._movers:
            mover.close()
        version = 0
        while version != max(one.map_version for one in self._group.executors):
            version = max(one.map_version for one in self._group.executors)
            time.sleep(5 * IDLE_S)

    def close(self) -> None:
        """Give all back. The ranks must not compute any more."""
        self._stopped.set()
        self._thread.join()
        for mover, slots in zip(self._movers, self.slots, strict=True):
            mover.close()
            slots.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            layer = self._random.randrange(len(self.map.layers))
            rounds = self._random_rounds(layer)
            loads = {layer: [1.0] * len(self.map.layers[0].homes)}
            mover = ExpertMover(self._ledger, rounds, loads, expert_bytes=1, bytes_per_s=1e9, deadline=1e12)
            if self._drive(mover):
                self.moved += sum(len(one.moves) for one in rounds)

    def _random_rounds(self, layer: int) -> tuple[MoveRound, ...]:
        """All experts at random slots, the rest filled with random copies."""
        now = slots_of(self.map.placement(layer))
        experts = range(len(self.map.layers[layer].homes))
        held = [*experts, *self._random.choices(experts, k=len(now) - len(experts))]
        self._random.shuffle(held)
        return move_rounds(layer, now, dict(zip(sorted(now), held, strict=True))) or ()

    def _drive(self, mover: ExpertMover) -> bool:
        """Returns: whether it ended before the stop."""
        ended = len(self.ended)
        self._take(mover.start(time.monotonic()))
        while len(self.ended) == ended:
            if self._stopped.is_set():
                return False
            try:
                event = self._events.get(timeout=0.001)
            except Empty:
                event = MoverTick()
            if isinstance(event, MapSwitched):
                self._switched[event.version] += 1
                if self._switched[event.version] < len(self._movers):
                    continue
            self._take(mover.on(event, time.monotonic()))
        return True

    def _take(self, effects: Sequence[MoverEffect]) -> None:
        for effect in effects:
            if isinstance(effect, MovesEnded):
                self.ended.append(effect)
            for mover in self._movers:
                mover.take(effect)

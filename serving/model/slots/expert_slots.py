"""A rank's expert slots: the arrays that the native step reads, and the memory to which they point.

    mapped    slots point into the loaded model, on an image that all processes of the node share
    copied    slots are records in a region of this rank; the model's experts need not stay in its memory

Theory of operation. The native step may read the arrays at any time during a step, so they change only between two
steps, in `publish`. Slots are filled by another thread while steps run: the map in use never refers to a slot that is
being filled. A map that refers to it is requested only after the slot was published, so a map never refers to a slot
missing in the arrays.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from serving.errors import ExpertError
from serving.model.native.layout import NativeLinear
from serving.model.slots.expert_record import (
    PANELS,
    Pace,
    PackedExpert,
    PackedProduct,
    clear_record,
    copy_record,
    open_record,
    write_record,
)
from serving.model.slots.slot_region import SlotLayout, SlotRegion, SlotsOffer
from serving.values.expert_map import GateRule

Contents = Sequence[Sequence[int | None]]
"""Experts of a rank's slots, [expert layer][slot]; None = empty."""
Published = Callable[[], None]
"""Called between two steps once the native step uses a slot; must not block."""


class ExpertSource(Protocol):
    """A model's experts, from a source that can be read repeatedly."""

    @property
    def in_place(self) -> bool:
        """Whether `expert` returns memory that exists anyway, so that it costs no reading and packing."""
        ...

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        ...

    def room(self, layer: int) -> int:
        """Size of the largest possible record of an expert in this layer [bytes]."""
        ...

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """An expert's products; valid while they are referenced.

        Raises: ModelError or ExpertError if they are unavailable.
        """
        ...

    def forget(self) -> None:
        """Release memory that was mapped only to copy experts from it."""
        ...


class SharedSource(ExpertSource, Protocol):
    """Experts of a model that may have shared ones."""

    def shared(self, layer: int) -> PackedExpert:
        """The shared experts of a layer with routed ones, as one network.

        Raises: ModelError if they are unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Routed experts of a model, wherever they are read from.

    Args:
        experts: of a layer. gate: how gates choose among them.
        layer_names: of the layers with experts, as the model numbers them.
    """

    source: ExpertSource
    experts: int
    gate: GateRule
    layer_names: tuple[str, ...]


class SlotTable:
    """Arrays of `cm_linear`, one entry per slot, and the memory to which they point.

    Args:
        count: slots of all layers.
    """

    def __init__(self, count: int) -> None:
        self.gate_up = (NativeLinear * count)()
        self.down = (NativeLinear * count)()
        self.count = count
        self._held: list[PackedExpert | None] = [None] * count
        self._pending: dict[int, PackedExpert | None] = {}
        self._to_call: list[Published] = []
        self._lock = threading.Lock()

    def put(self, number: int, expert: PackedExpert | None, published: Published | None = None) -> None:
        """Set a slot's content from the next `publish` on; None = empty. Any thread.

        Args:
            published: called by `publish`.
        """
        with self._lock:
            self._pending[number] = expert
            if published is not None:
                self._to_call.append(published)

    def publish(self) -> None:
        """Write pending changes into the arrays. Call between two steps; or at any time if no map in use refers to

        the slots. Thread-safe: when a call returns, all changes pending before it are in the arrays.
        """
        with self._lock:
            pending, self._pending = self._pending, {}
            to_call, self._to_call = self._to_call, []
            for number, expert in pending.items():
                self.gate_up[number] = NativeLinear() if expert is None else _linear(expert.gate_up)
                self.down[number] = NativeLinear() if expert is None else _linear(expert.down)
                self._held[number] = expert
        for published in to_call:
            published()


class ExpertSlots(Protocol):
    """Slots of a rank, filled one by one."""

    layout: SlotLayout
    table: SlotTable
    offer: SlotsOffer | None
    """For peers that may read experts from these slots; None if they use the same source as this rank."""

    def empty(self, layer: int, slot: int) -> None:
        """Empty a slot. No map in use may refer to it.

        Raises: ExpertError if the slot does not exist.
        """
        ...

    def fill(
        self,
        layer: int,
        slot: int,
        expert: int,
        record: memoryview | None = None,
        published: Published | None = None,
    ) -> None:
        """Load an expert into a slot. No map in use may refer to it.

        Args:
            record: of the expert, from a peer or from staging memory; None = this rank's own source provides it.
            published: called once the native step uses it.
        Raises: ExpertError, naming layer, expert and slot; the slot is empty then.
        """
        ...

    def stage(self, layer: int, expert: int, record: memoryview | None, pace: Pace | None = None) -> memoryview | None:
        """A record of an expert in separate memory, to fill a slot later; None = no fetch needed.

        Args:
            record: of a peer; None = this rank's own source provides it.
        Raises: ExpertError, ModelError or any exception from `pace`.
        """
        ...

    def forget(self) -> None:
        """Release memory that was mapped only to fill slots from it."""
        ...

    def close(self) -> None:
        """Free the memory; the native step must no longer run."""
        ...


class MappedSlots:
    """`ExpertSlots` that point into a source that keeps every expert, without memory of their own.

    Args:
        source: must exist as long as the slots are used.
    """

    offer: SlotsOffer | None = None

    def __init__(self, source: ExpertSource, slots: int, reserve: int = 0) -> None:
        room = [0] * source.layers
        self.layout = SlotLayout.of(slots, room, reserve) if slots else SlotLayout(0, tuple(room))
        self.table = SlotTable(self.layout.count)
        self._source = source

    def empty(self, layer: int, slot: int) -> None:
        self.table.put(self.layout.number(layer, slot), None)

    def fill(
        self,
        layer: int,
        slot: int,
        expert: int,
        record: memoryview | None = None,
        published: Published | None = None,
    ) -> None:
        """Fill as in `ExpertSlots`; `record` is ignored."""
        self.table.put(self.layout.number(layer, slot), self._source.expert(layer, expert), published)

    def stage(self, layer: int, expert: int, record: memoryview | None, pace: Pace | None = None) -> memoryview | None:
        """Returns None, since the expert is already present."""
        return None

    def forget(self) -> None:
        """Do nothing: the slots use the model's memory."""

    def close(self) -> None:
        """Do nothing: there is no memory to free."""


class CopiedSlots:
    """`ExpertSlots` in memory of their own; a reserve slot takes none, but uses the source's weights in place.

    Args:
        region: the memory; closed together with the slots.
        source: weights of experts that `fill` is called for without a record.
    """

    def __init__(self, region: SlotRegion, source: ExpertSource) -> None:
        self.layout = region.layout
        self.table = SlotTable(self.layout.count)
        self.offer: SlotsOffer | None = region.offer
        self._region = region
        self._source = source

    def record(self, number: int) -> memoryview:
        """The memory of a slot, by its number in the layout."""
        return self._region.record(number)

    def empty(self, layer: int, slot: int) -> None:
        number = self.layout.number(layer, slot)
        self.table.put(number, None)
        if slot < self.layout.slots:
            clear_record(self.record(number))

    def fill(
        self,
        layer: int,
        slot: int,
        expert: int,
        record: memoryview | None = None,
        published: Published | None = None,
    ) -> None:
        """See `ExpertSlots`; experts for reserve slots are not copied."""
        self.empty(layer, slot)
        number = self.layout.number(layer, slot)
        if slot >= self.layout.slots:
            self.table.put(number, self._source.expert(layer, expert), published)
            return
        memory = self.record(number)
        try:
            self._write(memory, layer, expert, record, None)
            self.table.put(number, open_record(memory, layer, expert, PANELS), published)
        except ExpertError as error:
            clear_record(memory)
            raise ExpertError(f"slot {slot} stays empty: {error}") from error
        except BaseException:
            clear_record(memory)
            raise

    def stage(self, layer: int, expert: int, record: memoryview | None, pace: Pace | None = None) -> memoryview | None:
        memory = np.empty(self.layout.room[layer], np.uint8).data
        self._write(memory, layer, expert, record, pace)
        return memory

    def forget(self) -> None:
        self._source.forget()

    def close(self) -> None:
        """Remove the region."""
        self._region.close()

    def _write(self, memory: memoryview, layer: int, expert: int, record: memoryview | None, pace: Pace | None) -> None:
        if record is not None:
            copy_record(memory, record, layer, expert, PANELS, pace)
        else:
            write_record(memory, layer, expert, self._source.expert(layer, expert), PANELS, pace)


def make_slots(
    kind: Literal["mapped", "copied"],
    source: ExpertSource,
    slots: int,
    path: str | os.PathLike[str],
    reserve: int = 0,
) -> ExpertSlots:
    """Empty slots of a rank.

    Args:
        slots: number per layer; 0 = a rank without experts.
        reserve: number of additional slots per layer, without memory.
        path: of the segment for copied slots.
    Raises: PlacementError for more slots than a rank can have; HardwareError if memory is short; ModelError if the
        source cannot be read.
    """
    if kind == "mapped" or slots == 0:
        return MappedSlots(source, slots, reserve)
    layout = SlotLayout.of(slots, [source.room(layer) for layer in range(source.layers)], reserve)
    return CopiedSlots(SlotRegion(path, layout), source)


def fill_all(slots: ExpertSlots, contents: Contents) -> None:
    """Fill slots before the first step.

    Args:
        contents: experts of each slot.
    Raises: ExpertError, ModelError.
    Effects: publishes them; releases their source.
    """
    for layer, held in enumerate(contents):
        for slot, expert in enumerate(held):
            if expert is not None:
                slots.fill(layer, slot, expert)
    slots.forget()
    slots.table.publish()


_NO_WEIGHTS = ctypes.create_string_buffer(64)
"""Stands for the weights of a product that only has sizes."""


def shapes_of(source: ExpertSource) -> list[tuple[NativeLinear, NativeLinear]]:
    """Products of one expert of each layer, without weights.

    Raises: ExpertError, ModelError.
    """
    experts = [source.expert(layer, 0) for layer in range(source.layers)]
    source.forget()
    return [(_shape_of(one.gate_up), _shape_of(one.down)) for one in experts]


def _shape_of(product: PackedProduct) -> NativeLinear:
    sizes = product.out_features, product.in_features, product.groups, product.form
    return NativeLinear(*sizes, ctypes.addressof(_NO_WEIGHTS))


def _linear(product: PackedProduct) -> NativeLinear:
    sizes = product.out_features, product.in_features, product.groups, product.form
    return NativeLinear(*sizes, _address(product.packed), _address(product.bias))


def _address(memory: memoryview) -> int | None:
    if not memory.nbytes:
        return None
    return int(np.frombuffer(memory, np.uint8).ctypes.data)

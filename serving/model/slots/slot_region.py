"""Memory of a rank's expert slots: one separate UB segment, from which the peers on its host read experts.

A slot fits any expert of its layer. A layer may also have reserve slots without memory, for experts of a lost
rank: they point into the loaded model. Slots are numbered over all layers:

    number = expert layer * (slots + reserve of a layer) + slot
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from hardware.errors import HardwareError
from hardware.ub.file import open_file, read_header
from hardware.ub.region import round_up
from hardware.ub.segment import UbSegment
from serving.errors import ExpertError, PlacementError
from serving.model.slots.expert_record import ALIGNMENT, Pace, clear_record

MOST_SLOTS = 1 << 16
"""Slots of a rank over all layers: the exchange identifies one with sixteen bits."""


class SlotLayout(msgspec.Struct, frozen=True):
    """Offsets of a rank's slots.

    Args:
        slots: number per layer, with memory.
        room: [expert layer] bytes of each slot.
        reserve: number of additional slots per layer, without memory.
    """

    slots: int
    room: tuple[int, ...]
    reserve: int = 0

    @classmethod
    def of(cls, slots: int, room: Sequence[int], reserve: int = 0) -> "SlotLayout":
        """The layout for slots of these sizes.

        Raises: PlacementError if a rank cannot have so many slots.
        """
        if slots < 1 or (slots + reserve) * max(1, len(room)) > MOST_SLOTS:
            every = slots + reserve
            raise PlacementError(f"{every} slots in each of {len(room)} layers: a rank has 1 to {MOST_SLOTS} in all")
        return cls(slots, tuple(round_up(nbytes, ALIGNMENT) for nbytes in room), reserve)

    @property
    def of_layer(self) -> int:
        """Slots of a layer, including the reserve."""
        return self.slots + self.reserve

    @property
    def count(self) -> int:
        """Slots of all layers."""
        return self.of_layer * len(self.room)

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return self.slots * sum(self.room)

    def number(self, layer: int, slot: int) -> int:
        """A slot's number.

        Raises: ExpertError if the slot does not exist.
        """
        if not (0 <= layer < len(self.room) and 0 <= slot < self.of_layer):
            raise ExpertError(f"layer {layer}, slot {slot}: there are {len(self.room)} layers of {self.of_layer} slots")
        return layer * self.of_layer + slot

    def place(self, number: int) -> tuple[int, int]:
        """Offset and bytes of a slot in the region.

        Raises: ExpertError for a reserve slot.
        """
        layer, slot = divmod(number, self.of_layer)
        if slot >= self.slots:
            raise ExpertError(f"layer {layer}, slot {slot}: only the first {self.slots} have their own memory")
        return self.slots * sum(self.room[:layer]) + slot * self.room[layer], self.room[layer]


class SlotsOffer(msgspec.Struct, frozen=True):
    """Description of a rank's slots for its peers.

    Args:
        path: of the segment.
        session: identifies this segment.
        offset: of the region in the file.
    """

    path: str
    session: int
    offset: int
    layout: SlotLayout


class SlotRegion:
    """A rank's own slots.

    Args:
        path: of the segment, which must not exist yet.
    Raises: HardwareError if memory is short, or the path exists.
    Effects: creates a segment and allocates all of its memory.
    """

    def __init__(self, path: str | os.PathLike[str], layout: SlotLayout) -> None:
        self.layout = layout
        self._segment = UbSegment.create(path, layout.nbytes, max_regions=1)
        try:
            region = self._segment.allocate(layout.nbytes, "expert slots")
            self._memory = self._segment.view(region)
            for layer in range(len(layout.room)):
                for slot in range(layout.slots):
                    clear_record(self.record(layout.number(layer, slot)))
        except BaseException:
            self._segment.remove()
            raise
        self.offer = SlotsOffer(str(path), self._segment.session, region.offset, layout)

    def record(self, number: int) -> memoryview:
        """The memory of one slot."""
        offset, nbytes = self.layout.place(number)
        return self._memory[offset : offset + nbytes]

    def close(self) -> None:
        """Remove the segment. Mapped memory stays valid. Safe to call twice."""
        self._segment.remove()


class PeerSlots:
    """Slots of another rank on this host, read one at a time: mapped only while a record is in use.

    Args:
        offer: the peer's description of its slots.
    """

    paced = False

    def __init__(self, offer: SlotsOffer) -> None:
        self.layout = offer.layout
        self._offer = offer

    @classmethod
    def of(cls, offer: bytes) -> Self:
        """From the peer's description as `RankOffer.slots` holds it."""
        return cls(msgspec.msgpack.decode(offer, type=SlotsOffer))

    def record(self, layer: int, slot: int, pace: Pace | None = None) -> memoryview:
        """The memory of one slot, read-only; it may change at any time. Nothing is copied, so there is nothing to pace.

        Raises: ExpertError if the peer's segment was removed or replaced.
        Effects: the memory stays mapped as long as this view or a part of it exists.
        """
        offset, nbytes = self.layout.place(self.layout.number(layer, slot))
        path, start = Path(self._offer.path), self._offer.offset + offset
        skip = start % mmap.ALLOCATIONGRANULARITY
        try:
            fd = open_file(path)
            try:
                header = read_header(fd, path)
                if header is None or header.session != self._offer.session or header.file_bytes < start + nbytes:
                    raise ExpertError(f"layer {layer}, slot {slot}: {path} is no longer the peer's segment")
                mapped = mmap.mmap(fd, skip + nbytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=start - skip)
            finally:
                os.close(fd)
        except (HardwareError, OSError) as error:
            raise ExpertError(f"layer {layer}, slot {slot}: the peer's slots cannot be read ({error})") from error
        return memoryview(mapped)[skip:]

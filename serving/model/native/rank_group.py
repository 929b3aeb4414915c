"""A rank's place in its group: windows in shared memory, and the locations of experts.

The library keeps the addresses; the joining rank keeps the memory alive, see `NativeGroupExecutor`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardware.ub.exchange_layout import WindowLayout, WindowShape
from serving.errors import ModelError
from serving.model.native.layout import MAP_POSITIONS, NativeGroupPlace, NativeLinear, NativeWindowShape
from serving.model.native.library import Library

FIRST_EPOCH = 1
"""Epoch of a new group; each loss or change of size raises it."""


class SlotArrays(Protocol):
    """Contents of a rank's expert slots, all layers in sequence."""

    gate_up: "ctypes.Array[NativeLinear]"
    """`[slots]` products; one without outputs marks an empty slot. Read in every step; changed between steps only, in
    `publish`.
    """
    down: "ctypes.Array[NativeLinear]"

    def publish(self) -> None:
        """Write all changes since the last call into the arrays. Call between two steps."""
        ...


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A rank's place in its group.

    Args:
        rank: this rank's number.
        windows: by rank, mapped and writable; None for a missing rank. As many as each window has capacity for.
        processes: of all ranks; 0 for a missing one.
        slots: this rank's slots.
        expert_map: `[layers, 16, experts] uint32`: rank << 16 | slot, for layers with routed experts, the draft
            layer's last; the row at position p of a step uses entry p mod 16, which spreads an expert's rows over its
            replicas.
        map_version: version of the map.
        cores: cores of this host, shared by its ranks.
        deadline_s: timeout of each wait for a peer [s].
    """

    rank: int
    windows: Sequence[memoryview | None]
    processes: Sequence[int]
    slots: SlotArrays
    expert_map: NDArray[np.uint32]
    map_version: int = 1
    cores: int = 1
    deadline_s: float = 5.0


def native_place(place: GroupPlace, experts: int) -> tuple[NativeGroupPlace, list[object]]:
    """Struct of a place, and the objects that must stay alive while it is used.

    Raises: ModelError if the map has another shape or type.
    """
    table = native_map(place.expert_map, experts)
    addresses = [None if window is None else address_of(window) for window in place.windows]
    windows = (ctypes.c_void_p * len(addresses))(*addresses)
    processes = (ctypes.c_int32 * len(place.processes))(*place.processes)
    struct = NativeGroupPlace(
        rank=place.rank,
        ranks=len(place.windows),
        cores=place.cores,
        layers=table.shape[0],
        slots=len(place.slots.gate_up),
        windows=ctypes.cast(windows, ctypes.POINTER(ctypes.c_void_p)),
        processes=ctypes.cast(processes, ctypes.POINTER(ctypes.c_int32)),
        gate_up=ctypes.cast(place.slots.gate_up, ctypes.POINTER(NativeLinear)),
        down=ctypes.cast(place.slots.down, ctypes.POINTER(NativeLinear)),
        deadline_ns=int(place.deadline_s * 1e9),
        map_version=place.map_version,
        map=table.ctypes.data,
    )
    return struct, [windows, processes, table, place]


def native_map(expert_map: NDArray[np.uint32], experts: int) -> NDArray[np.uint32]:
    """The map in the library's form.

    Raises: ModelError if it has another shape or type.
    """
    shape = expert_map.shape
    if expert_map.dtype != np.uint32 or len(shape) != 3 or shape[1:] != (MAP_POSITIONS, experts):
        raise ModelError(
            f"an expert map of {shape} {expert_map.dtype}; it must be [layers, {MAP_POSITIONS}, {experts}] uint32"
        )
    return np.ascontiguousarray(expert_map)


def window_bytes(shape: WindowShape) -> int:
    """Memory of a window [bytes]."""
    return WindowLayout.of(shape).bytes


def format_window(library: Library, memory: memoryview, shape: WindowShape, rank: int, members: int) -> None:
    """Initialise memory as a rank's window in the first epoch.

    Args:
        memory: `window_bytes(shape)`, 64-byte aligned, writable.
        members: bit r is set if rank r belongs to the group.
    Raises: ModelError if the sizes are invalid.
    Effects: writes the memory; call it before any peer maps it.
    """
    sizes = native_shape(shape)
    place = address_of(memory)
    library.check(library.functions.cm_window_format(place, ctypes.byref(sizes), rank, FIRST_EPOCH, members))


def raise_epoch(library: Library, memory: memoryview, epoch: int, members: int) -> None:
    """Start a new epoch at a rank and wake it: it abandons its pending wait and repeats its step with these members.
    Former members must be dead, since a live one could still write into the others' windows. Epochs only increase.
    """
    library.functions.cm_window_raise(address_of(memory), epoch, members)


def native_shape(shape: WindowShape) -> NativeWindowShape:
    """The struct of a window's sizes."""
    return NativeWindowShape(shape.ranks, shape.max_rows, shape.top_k, shape.row_bytes, shape.result_bytes)


def address_of(memory: memoryview) -> int:
    """Address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

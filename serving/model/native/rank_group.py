"""A rank's place in its group: windows in shared memory, the locations of experts, and its native side.

The library keeps the addresses; `RankGroup` keeps the memory alive. Imports no torch: expert ranks have none.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardware.ub.exchange_layout import WindowLayout, WindowShape
from serving.errors import EngineError, GroupError, ModelError
from serving.model.native.layout import (
    MAP_POSITIONS,
    NativeExpertSizes,
    NativeFailure,
    NativeGroupPlace,
    NativeLinear,
    NativeRole,
    NativeWindowShape,
)
from serving.model.native.library import Library, load
from serving.values.expert_map import NO_SESSIONS, ExchangeFacts, ExpertWork, SessionTimes

FIRST_EPOCH = 1
"""Epoch of a new group; each loss or change of size raises it."""


class EngineHandle:
    """A cm_engine, freed with this object.

    Attributes:
        address: of the cm_engine; valid while this object exists.
    """

    def __init__(self, library: Library) -> None:
        self.functions = library.functions
        self.address = ctypes.c_void_p()

    def __del__(self) -> None:
        self.functions.cm_engine_free(self.address)

    def check(self, result: int) -> None:
        """Raises: EngineError or GroupError with the library's message if a function did not return 0."""
        if result:
            kind = GroupError if result == NativeFailure.GROUP else EngineError
            raise kind(self.functions.cm_error_text().decode(errors="replace"))


class ExpertEngine(EngineHandle):
    """An engine of a rank that has experts only: it serves its group, and takes no steps.

    Args:
        threads: that compute rows, including the one that serves.
        max_rows: computed at once, times the experts of a row.
    Raises: EngineError if sizes are impossible, or memory or threads are short.
    Effects: starts the other threads, which sleep while no rank asks; they end with this object.
    """

    def __init__(self, library: Library, sizes: NativeExpertSizes, threads: int, max_rows: int) -> None:
        super().__init__(library)
        self.check(self.functions.cm_experts_new(ctypes.byref(sizes), threads, max_rows, ctypes.byref(self.address)))


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
            replicas. `MAP_MASKED` at all positions: no rank holds the expert, and gates choose others.
        map_version: version of the map.
        cores: cores of this host, shared by its ranks.
        deadline_s: timeout of each wait for a peer [s].
        shared: `[layers]` shared experts, at a rank that computes them for others.
        gather_us: see `[experts] gather_us`.
    """

    rank: int
    windows: Sequence[memoryview | None]
    processes: Sequence[int]
    slots: SlotArrays
    expert_map: NDArray[np.uint32]
    map_version: int = 1
    cores: int = 1
    deadline_s: float = 5.0
    shared: SlotArrays | None = None
    gather_us: int = -1


class RankGroup:
    """An engine's side of a group. After `join` the experts of each of its steps are the group's.

    Args:
        experts: of a layer.
    """

    def __init__(self, engine: EngineHandle, experts: int) -> None:
        self._engine, self._functions, self._experts = engine, engine.functions, experts
        self.sends_shared = False
        """Whether expert ranks compute shared experts. Set it before `window_shape` and `join`."""
        self._joined: GroupPlace | None = None
        self.masked_rows = 0
        """Rows of steps in which experts were masked. Any thread may read it."""
        self._windows: dict[int, list[memoryview]] = {}
        """By rank: windows that were set after `join`; more than one until the engine uses the latest."""

    def window_shape(self, ranks: int) -> WindowShape:
        """Sizes of the windows of a group with this many ranks.

        Raises: EngineError if the model has no routed experts, or there are too many rows or ranks.
        """
        found, engine = NativeWindowShape(), self._engine
        shape_of = self._functions.cm_window_shape_of
        engine.check(shape_of(engine.address, ranks, self.sends_shared, ctypes.byref(found)))
        return WindowShape(found.ranks, found.max_rows, found.top_k, found.row_bytes, found.result_bytes)

    def join(self, place: GroupPlace) -> None:
        """Join the group. Call once, before the first step.

        Raises: EngineError if windows, slots or map do not fit the model; ModelError if the map has another form.
        """
        struct, _kept = native_place(place, self._experts)
        struct.shared = self.sends_shared
        self._engine.check(self._functions.cm_group_join(self._engine.address, ctypes.byref(struct)))
        self._joined = place

    @property
    def joined(self) -> bool:
        """Whether it has joined."""
        return self._joined is not None

    def publish(self) -> None:
        """Publish changes of the slots, between two steps."""
        if self._joined is not None:
            self._joined.slots.publish()

    def use_micro_batches(self, count: int) -> None:
        """Cut further steps of several sequences into this many micro-batches, 1 or 2. Call after `join`."""
        self._functions.cm_group_use_micro_batches(self._engine.address, count)

    def serve(self, timeout_s: float) -> None:
        """Serve rows of peers, until the timeout or `wake`.

        Raises: GroupError if a peer sent an impossible request, or a new epoch does not include this rank.
        """
        assert self._joined is not None, "a rank serves peers only after it has joined"
        self.publish()
        self._engine.check(self._functions.cm_group_serve(self._engine.address, max(0, int(timeout_s * 1e9))))

    def wake(self) -> None:
        """End `serve` soon. Any thread."""
        if self._joined is not None:
            self._functions.cm_group_wake(self._engine.address)

    def set_peer(self, rank: int, window: memoryview, process: int) -> None:
        """Replace a rank's process from the next epoch on. Any thread.

        Args:
            window: the new process's, mapped; kept.
        Raises: EngineError if the window does not fit.
        """
        self._keep(rank, window)
        check = self._functions.cm_group_set_peer(self._engine.address, rank, address_of(window), process)
        self._engine.check(check)

    def admit(self, rank: int, window: memoryview) -> None:
        """Let a rank without experts join this epoch, or another process in its place. Only at a rank without
        attention. Any thread.

        Args:
            window: as for `set_peer`.
        Raises: EngineError if the window does not fit, or either rank has another role.
        """
        self._keep(rank, window)
        self._engine.check(self._functions.cm_group_admit(self._engine.address, rank, address_of(window)))

    def drop(self, rank: int) -> None:
        """Answer a rank without experts no more. Only at a rank without attention. Any thread.

        Raises: EngineError at a rank with attention.
        """
        self._engine.check(self._functions.cm_group_drop(self._engine.address, rank))

    def _keep(self, rank: int, window: memoryview) -> None:
        known = self._windows.setdefault(rank, [])
        if self._functions.cm_group_settled(self._engine.address):
            del known[:-1]
        known.append(window)

    def set_map(self, version: int, expert_map: NDArray[np.uint32], epoch: int = 0) -> None:
        """Set the next expert map. This rank uses it from its next step on.

        Args:
            version: higher than any before.
            expert_map: as `GroupPlace.expert_map`.
            epoch: earliest epoch of use, in which all ranks of the map are members.
        Raises: ModelError, or EngineError if it does not match the experts in this rank's slots or its version is not
            higher.
        """
        table = native_map(expert_map, self._experts)
        self._engine.check(self._functions.cm_group_set_map(self._engine.address, version, table.ctypes.data, epoch))

    @property
    def epoch(self) -> int:
        """Epoch of this rank's computation."""
        return int(self._functions.cm_group_epoch(self._engine.address))

    def take_masked(self, rows: int) -> int:
        """Most experts of all layers that no rank held in the calls of a step, so that gates chose others.

        Call it after each step, on its thread.

        Args:
            rows: of the step.
        Effects: if experts were masked, adds the rows to `masked_rows`.
        """
        masked = int(self._functions.cm_group_masked(self._engine.address))
        self.masked_rows += rows if masked else 0
        return masked

    @property
    def map_version(self) -> int:
        """Version of the oldest map that this rank uses, or one that it asks or answers."""
        return int(self._functions.cm_group_map_version(self._engine.address))

    def rows_sent(self) -> NDArray[np.uint64]:
        """`[layers, experts]`: rows of this rank that chose each expert, since it joined."""
        assert self._joined is not None, "a rank that has not joined sends nothing"
        found = np.zeros((len(self._joined.expert_map), self._experts), np.uint64)
        self._functions.cm_group_counts(self._engine.address, found.ctypes.data)
        return found

    def exchanged(self) -> ExchangeFacts:
        """Bytes and time of the exchange since it joined. Any thread."""
        assert self._joined is not None, "a rank that has not joined exchanges nothing"
        found = np.zeros((3, len(self._joined.windows)), np.uint64)
        step_ns = int(self._functions.cm_group_usage(self._engine.address, found.ctypes.data))
        sent, returned, waited = found.tolist()
        work = (ctypes.c_int64 * 3)()
        self._functions.cm_group_work(self._engine.address, work)
        return ExchangeFacts(
            sent_bytes=tuple(sent),
            returned_bytes=tuple(returned),
            waited_s=tuple(ns / 1e9 for ns in waited),
            worked_s=max(0, step_ns - sum(waited)) / 1e9,  # a wait is counted before its step ends
            work=ExpertWork(work[0] / 1e9, work[1], work[2]),
            sessions=self.sessions(),
        )

    def sessions(self) -> SessionTimes:
        """Times of its sessions since it joined. Any thread."""
        if self._joined is None:
            return NO_SESSIONS
        found = (ctypes.c_int64 * 4)()
        self._functions.cm_group_sessions(self._engine.address, found)
        return SessionTimes(found[1] / 1e9, found[2] / 1e9, found[3] / 1e9, rounds=found[0])

    def awaited(self) -> tuple[int, float] | None:
        """The peer that this rank is waiting for, and for how long [s]; None = for none. Any thread."""
        if self._joined is None:
            return None
        waited = ctypes.c_int64()
        rank = int(self._functions.cm_group_awaits(self._engine.address, ctypes.byref(waited)))
        return None if rank < 0 else (rank, waited.value / 1e9)


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
        gather_ns=place.gather_us * 1000 if place.gather_us > 0 else place.gather_us,
        map_version=place.map_version,
        map=table.ctypes.data,
    )
    if place.shared is not None:
        struct.shared_gate_up = ctypes.cast(place.shared.gate_up, ctypes.POINTER(NativeLinear))
        struct.shared_down = ctypes.cast(place.shared.down, ctypes.POINTER(NativeLinear))
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


def group_library() -> Library:
    """The native library, which groups of ranks need. Raises: ModelError if it could not be loaded; see the log."""
    library = load()
    if library is None:
        raise ModelError("groups of ranks need the native library, which could not be loaded; see the log")
    return library


def window_bytes(shape: WindowShape) -> int:
    """Memory of a window [bytes]."""
    return WindowLayout.of(shape).bytes


def format_window(
    library: Library,
    memory: memoryview,
    shape: WindowShape,
    rank: int,
    members: int,
    role: NativeRole = NativeRole.BOTH,
) -> None:
    """Initialise memory as a rank's window in the first epoch.

    Args:
        memory: `window_bytes(shape)`, 64-byte aligned, writable.
        members: bit r is set if rank r belongs to the group.
    Raises: ModelError if the sizes are invalid.
    Effects: writes the memory; call it before any peer maps it.
    """
    sizes = native_shape(shape)
    place = address_of(memory)
    library.check(library.functions.cm_window_format(place, ctypes.byref(sizes), rank, role, FIRST_EPOCH, members))


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

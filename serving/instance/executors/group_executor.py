"""Computes a rank's steps with experts distributed over all ranks of its group: the native step.

During a step a rank requests results from its peers' experts and serves their requests; the steps of ranks need not
start or end together. A step that a peer's death interrupts is repeated inside the call, in the next epoch, from the
same plan; the caller of `execute` only observes a longer step.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from hardware.ub.exchange_layout import WindowShape
from serving.instance.core.micro_batches import MicroBatches
from serving.instance.executors.native_batch import NativeBatch
from serving.instance.executors.native_executor import NativeExecutor
from serving.model.native.layout import NativeWindowShape
from serving.model.native.rank_group import GroupPlace, address_of, native_map, native_place
from serving.values.expert_map import ExchangeFacts, ExpertWork
from serving.values.step_plan import StepPlan, StepResult


class NativeGroupExecutor(NativeExecutor):
    """A `GroupExecutor`. Before `join` it computes without peers."""

    _joined: GroupPlace | None = None
    _peers: list[memoryview]
    _micro_batches = MicroBatches(1)

    def use_micro_batches(self, wanted: int | str) -> None:
        """Cut steps into micro-batches, as `MicroBatches`; by default steps are not cut. Tokens do not depend on it."""
        self._micro_batches = MicroBatches(wanted)

    def window_shape(self, ranks: int) -> WindowShape:
        """Sizes of the windows of a group with this many ranks.

        Raises: EngineError if the model has no routed experts, or there are too many rows or ranks.
        """
        found = NativeWindowShape()
        self._engine.check(self._functions.cm_window_shape_of(self._engine.address, ranks, ctypes.byref(found)))
        return WindowShape(found.ranks, found.max_rows, found.top_k, found.row_bytes, found.result_bytes)

    def join(self, place: GroupPlace) -> None:
        """Make the group's experts those of every further step. Call once, before the first step.

        Raises: EngineError if windows, slots or map do not fit the model; ModelError if the map has another form.
        """
        experts = self.model.config.expert_count
        struct, _kept = native_place(place, experts)
        self._engine.check(self._functions.cm_group_join(self._engine.address, ctypes.byref(struct)))
        self._joined, self._peers = place, []
        self._counted = len(place.expert_map), experts

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step of this rank; steps of its peers, if any, run concurrently.

        Raises: GroupError if a peer is late, or lost and no new epoch starts in time; EngineError as in
        `NativeExecutor`.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        self._publish()
        return super().execute(plan)

    def _run(self, plan: StepPlan, prepared: NativeBatch | None) -> StepResult:
        if self._joined is None:
            return super()._run(plan, prepared)
        rows, sequences = sum(len(step.tokens) + len(step.drafts) for step in plan.sequences), len(plan.sequences)
        count = self._micro_batches.choose(rows, sequences)
        self._functions.cm_group_use_micro_batches(self._engine.address, count)
        result = super()._run(plan, prepared)
        self._micro_batches.on_step(rows, sequences, count, result.elapsed_s)
        return result

    def serve(self, timeout_s: float) -> None:
        """Serve rows of peers while this rank has no step, as `GroupExecutor.serve`."""
        assert self._joined is not None, "a rank serves peers only after it has joined"
        self._publish()
        self._engine.check(self._functions.cm_group_serve(self._engine.address, max(0, int(timeout_s * 1e9))))

    def wake(self) -> None:
        """End `serve` soon, as `GroupExecutor.wake`."""
        if self._joined is not None:
            self._functions.cm_group_wake(self._engine.address)

    def set_peer(self, rank: int, window: memoryview, process: int) -> None:
        """Replace a rank's process from the next epoch on. Any thread.

        Args:
            window: the new process's, mapped; kept.
        Raises: EngineError if the window does not fit.
        """
        self._peers.append(window)
        check = self._functions.cm_group_set_peer(self._engine.address, rank, address_of(window), process)
        self._engine.check(check)

    def set_map(self, version: int, expert_map: NDArray[np.uint32], epoch: int = 0) -> None:
        """Set the next expert map. This rank uses it from its next step on.

        Args:
            version: higher than any before.
            expert_map: as `GroupPlace.expert_map`.
            epoch: earliest epoch of use, in which all ranks of the map are members.
        Raises: ModelError, or EngineError if it does not match the experts in this rank's slots or its version is not
            higher.
        """
        table = native_map(expert_map, self.model.config.expert_count)
        self._engine.check(self._functions.cm_group_set_map(self._engine.address, version, table.ctypes.data, epoch))

    @property
    def epoch(self) -> int:
        """Epoch of this rank's computation."""
        return int(self._functions.cm_group_epoch(self._engine.address))

    @property
    def map_version(self) -> int:
        """Version of the oldest map that a member uses: no row goes to a slot by an older one."""
        return int(self._functions.cm_group_map_version(self._engine.address))

    def rows_sent(self) -> NDArray[np.uint64]:
        """`[layers, experts]`: rows of this rank that chose each expert, since it joined."""
        found = np.zeros(self._counted, np.uint64)
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
        )

    def awaited(self) -> tuple[int, float] | None:
        """The peer that this rank is waiting for, and for how long [s]; None = for none. Any thread."""
        if self._joined is None:
            return None
        waited = ctypes.c_int64()
        rank = int(self._functions.cm_group_awaits(self._engine.address, ctypes.byref(waited)))
        return None if rank < 0 else (rank, waited.value / 1e9)

    def _publish(self) -> None:
        if self._joined is not None:
            self._joined.slots.publish()

    @property
    def _functions(self) -> ctypes.CDLL:
        return self._library.functions

"""Computes a rank's steps with experts distributed over all ranks of its group: the native step.

During a step a rank requests results from its peers' experts and serves their requests; the steps of ranks need not
start or end together. A step that a peer's death interrupts is repeated inside the call, in the next epoch, from the
same plan; the caller of `execute` only observes a longer step.
"""

from functools import cached_property

from msgspec.structs import replace

from serving.instance.core.micro_batches import MicroBatches
from serving.instance.executors.native_batch import NativeBatch
from serving.instance.executors.native_executor import NativeExecutor
from serving.model.native.rank_group import RankGroup
from serving.values.step_plan import StepPlan, StepResult


class NativeGroupExecutor(NativeExecutor):
    """A `GroupExecutor`. Before its `group` has joined it computes without peers."""

    _micro_batches = MicroBatches(1)

    @cached_property
    def group(self) -> RankGroup:
        """The engine's side of the group."""
        return RankGroup(self._engine, self.model.config.expert_count)

    def use_micro_batches(self, wanted: int | str) -> None:
        """Cut steps into micro-batches, as `MicroBatches`; by default steps are not cut. Tokens do not depend on it."""
        self._micro_batches = MicroBatches(wanted)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step of this rank; steps of its peers, if any, run concurrently.

        Raises: GroupError if a peer is late, or lost and no new epoch starts in time; EngineError as in
        `NativeExecutor`.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        self.group.publish()
        return super().execute(plan)

    def _run(self, plan: StepPlan, prepared: NativeBatch | None) -> StepResult:
        if not self.group.joined:
            return super()._run(plan, prepared)
        rows, sequences = sum(len(step.tokens) + len(step.drafts) for step in plan.sequences), len(plan.sequences)
        count = self._micro_batches.choose(rows, sequences)
        self.group.use_micro_batches(count)
        result = super()._run(plan, prepared)
        self._micro_batches.on_step(rows, sequences, count, result.elapsed_s)
        masked = self.group.take_masked(rows)
        return replace(result, masked=masked) if masked else result

    def serve(self, timeout_s: float) -> None:
        """Serve rows of peers while this rank has no step, as `GroupExecutor.serve`."""
        self.group.serve(timeout_s)

    def wake(self) -> None:
        """End `serve` soon, as `GroupExecutor.wake`."""
        self.group.wake()

"""One engine with fakes around it, moved by hand."""

from collections.abc import Callable
from functools import partial

from serving.errors import HandoffError, ServingError
from serving.ids import ReplicaId
from serving.instance.core.events import FetchOrder, PullOrder, StoreOrder
from serving.instance.core.settings import EngineSettings
from serving.values.step_plan import StepPlan, StepResult
from tests.fakes.engine_calls import EngineCalls
from tests.fakes.executor import FakeExecutor
from tests.fakes.pool import FakeContextCache, FakePool
from tests.fakes.transport import FakeFabric, FakeTransport
from tests.fakes.windowed_executor import WindowedExecutor


class FakeInstance:
    """One engine with its executor and transport, moved by hand."""

    def __init__(
        self, replica: ReplicaId, settings: EngineSettings, num_blocks: int, fabric: FakeFabric, pool: FakePool
    ) -> None:
        self.replica = replica
        self.engine = EngineCalls(settings, num_blocks)
        self.executor = make_executor(num_blocks, settings)
        self.executor.max_len = self.engine.max_len
        self.transport = FakeTransport(fabric, replica, self.executor)
        self.plan: StepPlan | None = None
        self.run: Callable[[], StepResult] | None = None
        """Runs `plan`, which was prepared before its tokens were known."""
        self.ahead: Callable[[], StepResult] | None = None
        """Runs the step after `plan`."""
        self.pulls: list[PullOrder] = []
        self.cache = FakeContextCache(pool, self.executor)
        self.fetches: list[FetchOrder] = []
        self.stores: list[StoreOrder] = []
        self.wake_at: float | None = None

    def begin_step(self, now: float) -> None:
        """Request the next action unless a step runs."""
        if self.plan is None:
            action = self.engine.next_action(now)
            self.plan, self.wake_at = action.plan, action.wake_at
            if self.plan is not None:
                rows = self.plan.num_tokens + sum(len(step.drafts) for step in self.plan.sequences)
                assert rows <= self.engine.settings.max_step_tokens, "a step is too large"
            self.pulls.extend(action.pulls)
            self.fetches.extend(action.fetches)
            self.stores.extend(action.stores)

    def foresee(self, now: float) -> None:
        """Prepare the step after the running one, if it can be planned."""
        plan = self.engine.foresee(now) if self.plan is not None else None
        self.ahead = self.executor.prepare(plan) if plan is not None else None

    def end_step(self, now: float, error: ServingError | None = None) -> None:
        """Execute the running step, or let it fail after it has written; a prepared one starts immediately."""
        if self.plan is None:
            return
        run, self.run, ahead, self.ahead = self.run or partial(self.executor.execute, self.plan), None, self.ahead, None
        self.plan = None
        self.executor.fail_next = error
        try:
            result = run()
        except ServingError as failure:
            if failure is not error:
                raise  # not the failure that the test requested
            self.engine.step_failed(failure, now)
            return
        if ahead is None:
            self.engine.step_finished(result, now)
        else:
            action = self.engine.step_followed(result, now)
            self.plan, self.run, self.wake_at = action.plan, ahead, action.wake_at
            self.stores.extend(action.stores)

    def end_pull(self, index: int, now: float, error: HandoffError | None = None) -> None:
        """Complete one of the running pulls."""
        order = self.pulls.pop(index)
        self.transport.fail_next = error
        try:
            moved = self.transport.pull(order.ticket, order.first_block, order.blocks)
        except HandoffError as failure:
            self.engine.pull_finished(order.sequence_id, failure, 0, now)
        else:
            self.engine.pull_finished(order.sequence_id, None, moved, now)
        self.transport.fail_next = None

    def end_fetch(self, index: int, now: float, lose_after: int | None = None) -> None:
        """Complete one of the running fetches."""
        order = self.fetches.pop(index)
        self.cache.lose_after = lose_after
        report = self.cache.fetch(order.namespace, order.hashes, order.blocks, order.rows)
        self.engine.fetch_finished(order.sequence_id, report, now)

    def end_store(self, index: int, now: float, *, dropped: bool = False) -> None:
        """Complete, or drop, one of the stores."""
        order = self.stores.pop(index)
        if not dropped:
            self.cache.store(order.namespace, order.hashes, order.blocks)
            if order.claim is not None:
                self.cache.claim(order.namespace, [order.claim])
        self.engine.store_finished(order.order_id, now)

    @property
    def busy(self) -> bool:
        """Whether a step or a transfer is running."""
        return bool(self.plan or self.pulls or self.fetches or self.stores)


def make_executor(num_blocks: int, settings: EngineSettings) -> FakeExecutor:
    """The executor for an engine with these settings."""
    if settings.split is None:
        return FakeExecutor(num_blocks, settings.block_tokens)
    return WindowedExecutor(num_blocks, settings.block_tokens, settings.split)

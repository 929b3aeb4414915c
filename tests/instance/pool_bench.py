"""A bench whose engine has a pool."""

from serving.instance.core.events import FetchOrder, StoreOrder
from serving.values.news import Tokens
from serving.values.pool_outcome import FetchReport
from tests.fakes.engine_calls import Orders
from tests.fakes.pool import FakeContextCache, FakePool
from tests.instance.bench import Bench


class PoolBench(Bench):
    """A bench whose engine has a pool; fetches and stores wait until a test completes them."""

    def __init__(self, pool: FakePool | None = None, **changes: object) -> None:
        super().__init__(**{"pool": True, **changes})  # type: ignore[arg-type]
        self.cache = FakeContextCache(pool or FakePool(), self.executor)
        self.fetches: list[FetchOrder] = []
        self.stores: list[StoreOrder] = []

    def act(self) -> Orders:
        action = self.engine.next_action(self.now)
        self.engine.check()
        self.fetches.extend(action.fetches)
        self.stores.extend(action.stores)
        return action

    def fetch(self) -> FetchReport:
        order = self.fetches.pop(0)
        report = self.cache.fetch(order.namespace, order.hashes, order.blocks)
        self.engine.fetch_finished(order.sequence_id, report, self.now)
        return report

    def store(self) -> None:
        order = self.stores.pop(0)
        self.cache.store(order.namespace, order.hashes, order.blocks)
        if order.claim is not None:
            self.cache.claim(order.namespace, [order.claim])
        self.engine.store_finished(order.order_id, self.now)

    def finish(self) -> list[Tokens]:
        """Complete all transfers and steps."""
        events: list[Tokens] = []
        while not self.engine.idle() or self.fetches or self.stores:
            plan = self.act().plan
            if plan is not None:
                self.engine.step_finished(self.executor.execute(plan), self.now)
            while self.fetches:
                self.fetch()
            while self.stores:
                self.store()
            events += [e for e in self.engine.take_events() if isinstance(e, Tokens)]
        self.act()
        while self.engine.snapshot(self.now).storing_blocks or self.stores:
            while self.stores:
                self.store()
            self.act()
        return events

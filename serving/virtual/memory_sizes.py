"""How many memory servers the KV-cache pool has in virtual time: those that come ramp up, those that go drain first."""

from serving.virtual.events import EventQueue
from serving.virtual.memory_pool import VirtualPool


class MemorySizes:
    """The size of one KV-cache pool. A server is up at once: what takes time is its ramp, `[kvcache] ramp_s`.

    Args:
        most: servers that the supernode's UB memory has room for.
    """

    def __init__(self, queue: EventQueue, pool: VirtualPool, target: int, most: int) -> None:
        self.target = target
        self.most = most
        self._queue = queue
        self._pool = pool

    def set_target(self, target: int) -> None:
        """Set the target number of servers: new servers join, or the latest ones start to drain."""
        grows = min(target, self.most) - min(self.target, self.most)
        self.target = target
        now = self._queue.now
        for _ in range(grows):
            self._pool.add_server(now)
        for name in self._pool.active()[grows:] if grows < 0 else []:
            self._pool.remove_server(name, now)

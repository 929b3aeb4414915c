"""KV transfers in virtual time: handoffs over RDMA, cached blocks over UB; every byte is counted on its plane."""

from typing import NamedTuple

from serving.errors import HandoffError
from serving.ids import ReplicaId
from serving.instance.core.events import FetchOrder, PullOrder, StoreOrder
from serving.values.pool_outcome import FetchReport, MissReason
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_values import LongestPrefix
from serving.virtual.network import Network
from serving.virtual.ports import Done

LOOKUP_S = 0.0005
"""One round of lookups to all servers of a prompt: the live pool's median is 0.1-0.2 ms for two servers on one node."""
ASK_S = 0.00012
"""Part of `LOOKUP_S` that keeps the instance busy: lookups that start together end one after the other. Source: the
live pool's lookup of 100 blocks (README). It matters although it is short: an engine that waits for several prompts
starts with the first one, and the others wait for a whole step."""


_SOON_S = 1e-4
"""Least time between two looks at the same loads."""


class _Fetch(NamedTuple):
    """One fetch. `latency_s`: of its lookup. `until`: when it ends at the latest [s]."""

    order: FetchOrder
    instance: ReplicaId
    found: LongestPrefix
    begun: float
    latency_s: float
    until: float
    done: Done


class VirtualMovers:
    """All KV transfers of one supernode.

    Args:
        pool: None without a KV-cache pool.
        kv_token_bytes: of one token, all layers.
        get_timeout_s: longest time of a lookup with its loads from SSD.
    """

    def __init__(
        self,
        network: Network,
        pool: VirtualPool | None,
        kv_token_bytes: int,
        block_tokens: int,
        get_timeout_s: float = 1.0,
    ) -> None:
        self._network = network
        self._pool = pool
        self._token_bytes = kv_token_bytes
        self._block_bytes = kv_token_bytes * block_tokens
        self._get_timeout_s = get_timeout_s
        self._clients: dict[ReplicaId, int] = {}
        self._asking_until: dict[ReplicaId, float] = {}
        self._late: dict[ReplicaId, float] = {}
        """Current delay of each instance's transfers [s]."""
        self.handed_off = 0
        self.pulled = 0
        self.stored = 0
        self.sent = 0
        self.asked_blocks = 0
        self.found_blocks = 0

    def slow(self, instance: ReplicaId, seconds: float) -> None:
        """Delay the future transfers of an instance by `seconds`; 0 = no delay."""
        if seconds > 0:
            self._late[instance] = seconds
        else:
            self._late.pop(instance, None)

    def _delayed(self, instance: ReplicaId, done: Done) -> Done:
        late = self._late.get(instance)
        return done if late is None else lambda outcome: self._network.later(late, done, outcome)

    def pull(self, order: PullOrder, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        """Move the blocks of a handoff. If the source dies during the transfer, the pull fails at its end."""
        knows = self._network.knows
        nbytes = tokens * self._token_bytes if knows(order.ticket.source) and knows(target) else 0
        done = self._delayed(target, done)
        source, source_die = order.ticket.source, order.ticket.generation
        self._network.handoff(source, target, die, nbytes, self._pulled, (order, nbytes, done), source_die)

    def _pulled(self, move: tuple[PullOrder, int, Done]) -> None:
        order, nbytes, done = move
        self.handed_off += nbytes
        if not self._network.knows(order.ticket.source):
            done((order, 0, HandoffError(f"{order.ticket.source} was lost with the blocks")))
            return
        done((order, nbytes, None))

    def fetch(self, order: FetchOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        pool, now = self._pool, self._network.now
        done = self._delayed(instance, done)
        if pool is None:
            done((order, FetchReport(0)))
            return
        found = pool.lookup_and_hold(order.namespace, order.hashes, self._client(instance), now)
        self.asked_blocks += len(order.hashes)
        self.found_blocks += found.blocks
        asked = self._asking_until[instance] = max(now, self._asking_until.get(instance, 0.0)) + ASK_S
        latency_s = asked - ASK_S - now + LOOKUP_S + found.waited_s
        fetch = _Fetch(order, instance, found, now, latency_s, now + self._get_timeout_s, done)
        if found.from_ssd:
            self._read_on(fetch)
        else:
            self._read(fetch, found.blocks, latency_s)

    def _read_on(self, fetch: "_Fetch") -> None:
        """Read the leading blocks that are in memory, then those that were loaded meanwhile; at the deadline, end."""
        pool, now, hold = self._pool, self._network.now, fetch.found.handle
        assert pool is not None
        latency_s = max(ASK_S, fetch.latency_s - (now - fetch.begun))
        due = pool.loads_due(hold, now)
        if hold.in_memory and now < fetch.until:
            self._read(fetch, hold.in_memory, latency_s)
        elif due is not None and now < fetch.until:
            self._network.later(max(min(due, fetch.until) - now, _SOON_S), self._read_on, fetch)
        else:
            self._end(fetch, hold.read)

    def _read(self, fetch: "_Fetch", blocks: int, latency_s: float) -> None:
        nbytes = blocks * self._block_bytes
        self._network.from_pool(fetch.instance, nbytes, latency_s, self._was_read, (fetch, blocks))

    def _was_read(self, move: "tuple[_Fetch, int]") -> None:
        fetch, blocks = move
        assert self._pool is not None
        self.pulled += blocks * self._block_bytes
        if fetch.found.from_ssd:
            self._pool.release(fetch.found.handle, self._network.now, blocks)
            self._read_on(fetch)
        else:
            self._end(fetch, blocks)

    def _end(self, fetch: "_Fetch", blocks: int) -> None:
        order, found = fetch.order, fetch.found
        assert self._pool is not None
        self._pool.release(found.handle, self._network.now)
        lost = found.blocks - blocks
        reason = MissReason.TIMEOUT if lost else None
        nbytes = blocks * self._block_bytes
        fetch.done((order, FetchReport(blocks, max(0, found.from_ssd - lost), lost, reason, nbytes)))

    def _client(self, instance: ReplicaId) -> int:
        return self._clients.setdefault(instance, len(self._clients))

    def store(self, order: StoreOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        nbytes = len(order.hashes) * self._block_bytes
        late = self._delayed(instance, done)
        self._network.to_pool(instance, nbytes, LOOKUP_S, self._stored, (order, instance, late))

    def _stored(self, move: tuple[StoreOrder, ReplicaId, Done]) -> None:
        order, instance, done = move
        assert self._pool is not None
        report = self._pool.store(order.namespace, order.hashes, self._client(instance), self._network.now)
        self.stored += report.stored * self._block_bytes
        self.sent += len(order.hashes) * self._block_bytes
        if order.claim is not None:
            self._pool.claim(order.namespace, order.claim, self._network.now)
        done(order)

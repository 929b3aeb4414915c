"""The virtual pool against the same ledgers driven as live clients drive them: every response and every entry agree."""

from hashlib import blake2b
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.config.kvcache import KvCacheConfig
from serving.ids import BlockHash
from serving.kvpool.core.ring import HashRing, RingServer
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_server import manager_settings
from serving.virtual.memory_values import LongestPrefix
from tests.virtual.core.pool_reference import Lease, ReferencePool

MIB = 1 << 20
CHAINS = [[BlockHash(blake2b(b"%d/%d" % (c, i), digest_size=16).digest()) for i in range(10)] for c in range(5)]
NAMESPACE = st.sampled_from(["red", "blue"])


def entries(manager: Any) -> list[tuple[Any, ...]]:
    """All entries without their versions, which count differently, in order of arrival."""
    return [
        (v.space, v.hash, v.nbytes, v.in_dram, v.offset, v.on_ssd, v.leased, v.last_use, v.hits)
        for v in manager.entries()
    ]


class PoolMachine(RuleBasedStateMachine):
    """Requests of two tenants, in steady pools."""

    @initialize(
        servers=st.sampled_from([1, 2, 3, 6]),
        blocks=st.integers(1, 6),
        eviction=st.sampled_from(["lru", "lfu", "fifo", "cost"]),
        quota=st.sampled_from([0, 0, 4]),
        block_mib=st.sampled_from([1, 3]),
    )
    def build(self, servers: int, blocks: int, eviction: Any, quota: int, block_mib: int) -> None:
        config = KvCacheConfig(
            replicas=servers, ub_memory_mib=blocks * block_mib, eviction=eviction, slab_kib=1024, lease_s=600.0
        )
        quotas = {"red": quota * block_mib * MIB}
        self.nbytes = block_mib * MIB
        self.pool = VirtualPool(config, self.nbytes, quotas=quotas)
        names = [one.name for one in self.pool.servers()]
        ring = HashRing([RingServer(name, 1.0) for name in names])
        self.reference = ReferencePool(names, manager_settings(config, self.nbytes), ring)
        for manager in self.reference.servers.values():
            manager.set_quotas({"red": max(1, quotas["red"] // servers)} if quota else {})
        self.open: list[tuple[int, list[Lease], LongestPrefix]] = []
        self.now = 0.0

    @rule(namespace=NAMESPACE, chain=st.sampled_from(CHAINS), blocks=st.integers(1, 10), keep=st.booleans())
    def request(self, namespace: str, chain: list[BlockHash], blocks: int, keep: bool) -> None:
        """Look up, and store the missing blocks when the bytes have arrived, or while they are still held."""
        self.now += 1.0
        asked = chain[:blocks]
        end, on_ssd, leases = self.reference.lookup(namespace, asked, self.now)
        found = self.pool.lookup_and_hold(namespace, asked, 1, self.now)
        assert (found.blocks, found.from_ssd, found.from_memory) == (end, on_ssd, end - on_ssd)
        assert found.servers == {name: sum(one[0] == name for one in leases) for name, _version in leases}
        self.open.append((self.reference.client, leases, found))
        if not keep:
            self.release(-1)
        outcomes = self.reference.store(namespace, asked[end:], self.nbytes, self.now)
        report = self.pool.store(namespace, asked[end:], 1, self.now)
        told = {"stored": report.stored, "present": report.present, **dict(report.dropped)}
        assert {word: count for word, count in told.items() if count} == outcomes

    @rule(which=st.integers(0, 10))
    def release(self, which: int) -> None:
        if self.open:
            client, leases, found = self.open.pop(which % len(self.open) if which >= 0 else which)
            self.reference.release(client, leases, self.now)
            self.pool.release(found.handle, self.now)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            for name, manager in self.reference.servers.items():
                assert entries(manager) == entries(self.pool._members.up[name].manager)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

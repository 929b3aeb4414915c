"""The pool as live clients use it, with their own operations over the same ledgers: the reference for the virtual
one.
"""

from collections import Counter
from collections.abc import Sequence

from serving.ids import BlockHash
from serving.kvpool.core.batch_write import BatchWrite, NewEntry
from serving.kvpool.core.entry import EntryTier, Kind, Space
from serving.kvpool.core.ledger_answers import ledger_answer
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
from serving.kvpool.core.operation import (
    ClientOperation,
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolRead,
    PoolWrite,
    PoolWritten,
)
from serving.kvpool.core.prefix_find import PrefixFind
from serving.kvpool.core.ring import HashRing
from serving.virtual.memory_server import LAYOUT

Lease = tuple[str, int]
"""Server, version."""


class ReferencePool:
    """Servers that never change; one client per lookup."""

    def __init__(self, names: Sequence[str], settings: ManagerSettings, ring: HashRing) -> None:
        self.servers = {name: MemoryManager(settings) for name in names}
        self.ring = ring
        self.client = 0

    def lookup(self, namespace: str, hashes: Sequence[BlockHash], now: float) -> tuple[int, int, list[Lease]]:
        """Leading blocks, those of them on SSD, and their leases."""
        self.client += 1
        find = PrefixFind(self.ring, self.servers, Space(namespace, LAYOUT), hashes, 600.0, now)
        self.drive(find, self.client, now)
        assert find.result is not None
        run = list(zip(find.result.found, find.result.servers, strict=True))
        on_ssd: dict[str, list[int]] = {}
        for item, name in run:
            if item.tier is EntryTier.SSD:
                on_ssd.setdefault(name, []).append(item.version)
        for name, versions in on_ssd.items():
            self.servers[name].promote(versions, self.client, now)
        return len(run), sum(map(len, on_ssd.values())), [(name, item.version) for item, name in run]

    def drive(self, operation: ClientOperation, client: int, now: float) -> None:
        """Run an operation; every server responds immediately."""
        effects = [*operation.start(now)]
        while effects:
            effect = effects.pop(0)
            assert not isinstance(effect, PoolClose | PoolRead), "nothing fails, nothing is read"
            if isinstance(effect, PoolWrite):
                effects += operation.on(PoolWritten(effect.server, [0] * len(effect.grants)), now)
                continue
            answer = ledger_answer(self.servers[effect.server], effect.message, client, now)
            if isinstance(effect, PoolAsk):
                effects += operation.on(PoolAnswer(effect.server, answer), now)

    def release(self, client: int, leases: Sequence[Lease], now: float) -> None:
        for name, version in leases:
            self.servers[name].release([version], client, now)

    def store(self, namespace: str, hashes: Sequence[BlockHash], nbytes: int, now: float) -> dict[str, int]:
        """Store blocks. Returns: the number of each outcome."""
        entries = [NewEntry(block, nbytes, self.ring.primary(block)) for block in hashes]
        write = BatchWrite(Space(namespace, LAYOUT), Kind.CONTEXT, entries, now + 1.0)
        self.drive(write, 0, now)
        assert write.result is not None
        return dict(Counter(write.result))

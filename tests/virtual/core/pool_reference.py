"""The pool as live clients drive it, message by message, over the same ledgers: what the virtual one must match."""

from collections.abc import Sequence

from serving.ids import BlockHash
from serving.kvpool.core.entry import Found, GrantStatus, Space, Tier
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
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
        """Leading blocks, those of them on SSD, and what is leased for them: as a live client's round of lookups."""
        self.client += 1
        asked: dict[str, list[int]] = {}
        for index, block in enumerate(hashes):
            for name in self.ring.readers(block):
                asked.setdefault(name, []).append(index)
        best: list[tuple[Found, str] | None] = [None] * len(hashes)
        answers: list[tuple[str, list[int], tuple[Found | None, ...]]] = []
        for name, indices in asked.items():
            space = Space(namespace, LAYOUT)
            found = self.servers[name].lookup(space, [hashes[i] for i in indices], self.client, now)
            answers.append((name, indices, found))
            for index, item in zip(indices, found, strict=True):
                if item is not None:
                    best[index] = (item, name)
        end = best.index(None) if None in best else len(best)
        for name, indices, found in answers:
            surplus = [item.version for i, item in zip(indices, found, strict=True) if item is not None and i >= end]
            self.servers[name].release(surplus, self.client, now)
        run = [one for one in best[:end] if one is not None]
        on_ssd: dict[str, list[int]] = {}
        for item, name in run:
            if item.tier is Tier.SSD:
                on_ssd.setdefault(name, []).append(item.version)
        for name, versions in on_ssd.items():
            self.servers[name].promote(versions, self.client, now)
        return end, sum(map(len, on_ssd.values())), [(name, item.version) for item, name in run]

    def release(self, client: int, leases: Sequence[Lease], now: float) -> None:
        for name, version in leases:
            self.servers[name].release([version], client, now)

    def store(self, namespace: str, hashes: Sequence[BlockHash], nbytes: int, now: float) -> dict[str, int]:
        """What became of how many: reserve on all servers, then commit on all servers, the last block first."""
        by_server: dict[str, list[BlockHash]] = {}
        for block in hashes:
            by_server.setdefault(self.ring.primary(block) or "", []).append(block)
        space = Space(namespace, LAYOUT)
        outcomes: dict[str, int] = {}
        granted = {
            name: self.servers[name].reserve(space, [(one, nbytes) for one in blocks], 0, now)
            for name, blocks in by_server.items()
        }
        for name, grants in granted.items():
            for grant in reversed(grants):
                word = grant.status.value
                if grant.status is GrantStatus.GRANTED:
                    assert self.servers[name].commit(grant.version, 0, 0, now)
                    word = "stored"
                outcomes[word] = outcomes.get(word, 0) + 1
        return outcomes

"""The KV-cache pool of one supernode in virtual time: the live pool's ring, roster and ledgers, without bytes and wire.

A lookup has the effects of a live client's on the ledgers (`kvpool/core/shelf.py`), in one moment:

    live                                             virtual time
    leases until the bytes have arrived or lease_s   a hold on the leading blocks, until `release` or `lease_s`
    SSD hits are promoted                            the same; the caller decides how long the bytes take
    reserve, copy, commit the last block first       the same in one moment, without other events in between

It omits only what messages need: grouping blocks by server, and responses for absent blocks.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from serving.config.kvcache import KvCacheConfig
from serving.errors import ConfigError, LedgerError
from serving.ids import BlockHash
from serving.kvpool.core.batch_write import reserve_deadline
from serving.kvpool.core.entry import Entry
from serving.kvpool.core.migration_plan import BYTES_PER_S
from serving.kvpool.core.prefix_find import lookup_deadline, servers_to_ask
from serving.kvpool.core.prefix_read import LoadsAhead
from serving.kvpool.core.shelf import FoundCopy, Shelf, ShelfRoutes
from serving.values.pool_outcome import MissReason, StoreReport
from serving.values.pool_view import ServerState
from serving.virtual.memory_claims import ClaimedServers
from serving.virtual.memory_members import NEVER, Members
from serving.virtual.memory_server import manager_settings
from serving.virtual.memory_values import BlockHold, LongestPrefix, PoolCounters, ServerFacts

SSD_BYTES_PER_S = 400e9 / 8
"""One server's reads and writes on its SSD tier.

Source: the EVS volumes of a node are reached over the VPC plane, 400 Gbit/s.
"""

ROOM_S = 0.02
"""How soon to look again for a load that waits for room; about every tick of a server's ledger."""


class VirtualPool(ClaimedServers):
    """All memory servers of a supernode. `now` never decreases from one call to the next."""

    def __init__(
        self,
        config: KvCacheConfig,
        block_bytes: int,
        now: float = 0.0,
        *,
        quotas: Mapping[str, int] | None = None,
        migration_bytes_per_s: float = BYTES_PER_S,
        ssd_bytes_per_s: float = SSD_BYTES_PER_S,
    ) -> None:
        """
        Args:
            config: `replicas` servers of `ub_memory_mib` and `ssd_mib` of accounted bytes each. A pool without servers
                finds and stores no block.
            block_bytes: of one KV block.
            quotas: bytes that a namespace may hold in the whole pool; absent or 0 = no limit.
            migration_bytes_per_s: pace at which one server hands entries to others.
        Raises: ConfigError if a server has no room for one block.
        """
        settings = manager_settings(config, block_bytes)
        if block_bytes < 1 or settings.capacity_bytes < block_bytes:
            raise ConfigError(
                f"[kvcache] ub_memory_mib = {config.ub_memory_mib} has no room for a KV block of {block_bytes} bytes; "
                "give a memory server at least a few blocks"
            )
        self._block_bytes = block_bytes
        self._server_bytes = settings.capacity_bytes
        self._lease_s = config.lease_s
        self._with_ssd = config.ssd_mib > 0
        self._members = Members(config, settings, quotas or {}, migration_bytes_per_s, ssd_bytes_per_s)
        self._timers = self._members.timers
        self._silent = self._members.silent
        self._get_timeout_s, self._put_timeout_s = config.get_timeout_s, config.put_timeout_s
        self._holds: deque[BlockHold] = deque()  # by `until`: the lease is the same for all
        self._counted = PoolCounters()
        self._routes: dict[str, ShelfRoutes] = {}
        self._routes_of = -1
        self._members.start(config.replicas, now)

    # Readers

    def lookup_and_hold(self, namespace: str, hashes: Sequence[BlockHash], client: int, now: float) -> LongestPrefix:
        """The longest prefix of these blocks in the pool, held for `lease_s` or until it is released.

        All found blocks count as used, in the prefix or not; promotions of SSD hits start.

        Args:
            client: number of the instance that looks up.
        """
        self.tick(now)
        if not self._silent:
            return self._hold(self._routes_in(namespace).find(hashes, now), len(hashes), now)
        members, until = self._members, lookup_deadline(now, self._get_timeout_s)
        asked = servers_to_ask(members.ring, members.listed, hashes)
        silent, end = self._silent.ask((client, False), asked, now, until)
        found = self._hold(self._routes_around(namespace, silent).find(hashes, now), len(hashes), now)
        return found._replace(waited_s=end - now)

    def _hold(self, run: list[FoundCopy], asked: int, now: float) -> LongestPrefix:
        on_ssd = 0
        for shelf, entry, _server in run:
            shelf.lend(entry)
            if not entry.in_dram:
                on_ssd += 1
        counted = self._counted
        counted.lookups += 1
        counted.blocks_asked += asked
        counted.blocks_memory += len(run) - on_ssd
        counted.blocks_ssd += on_ssd
        hold = BlockHold(run, now + self._lease_s)
        found = LongestPrefix(len(run), len(run) - on_ssd, on_ssd, hold)
        if run:
            self._holds.append(hold)
        if on_ssd:
            loads = [(place, entry.nbytes) for place, (_, entry, _) in enumerate(reversed(run)) if not entry.in_dram]
            hold.ahead = LoadsAhead(loads, self._server_bytes)
            self._load_ahead(hold, now)
        return found

    def _load_ahead(self, hold: BlockHold, now: float) -> None:
        """Order the next loads of a hold."""
        by_server: dict[str, list[tuple[Shelf, Entry]]] = {}
        for place in hold.ahead.next(hold.read) if hold.ahead is not None else ():
            shelf, entry, server = hold.blocks[hold.read - 1 - place]
            by_server.setdefault(server, []).append((shelf, entry))
        for server, pairs in by_server.items():
            pairs[0][0].bring([entry for _shelf, entry in pairs], now)
            self._members.work(self._members.processes()[server], now)

    def loads_due(self, handle: BlockHold, now: float) -> float | None:
        """When to look again whether the first block that was not read is in memory; None = it is, or is not coming."""
        self.tick(now)
        if not handle.blocks:
            return None
        _shelf, entry, name = handle.blocks[-1]
        server = self._members.up.get(name)
        if entry.in_dram or server is None or not server.manager.pending(entry.version):
            return None
        return max(now, server.disk_due or now) if entry.loading else now + ROOM_S

    def _read_on(self, handle: BlockHold, blocks: int, now: float) -> None:
        servers: dict[str, Shelf] = {}
        for _ in range(min(blocks, len(handle.blocks))):
            shelf, entry, server = handle.blocks.pop()
            shelf.give_back(entry)
            servers[server] = shelf
        handle.read += blocks
        for name, shelf in servers.items():
            if shelf.retry(now):
                self._members.work(self._members.processes()[name], now)
        if handle.blocks:
            self._load_ahead(handle, now)

    def prefetch(self, namespace: str, hashes: Sequence[BlockHash], now: float) -> None:
        """Have the servers load blocks from SSD that a waiting request will look up, as a live gateway asks them."""
        self.tick(now)
        members, asked = self._members, defaultdict[str, list[BlockHash]](list)
        for block, primary in zip(hashes, members.ring.primaries(hashes), strict=True):
            for name in (primary,) if members.steady else members.ring.readers(block):
                if name is not None:
                    asked[name].append(block)
        for name, blocks in asked.items():
            server = members.up.get(name)
            if server is not None:
                server.manager.prefetch(server.shelf(namespace).space, blocks, now)
                members.work(server, now)

    def release(self, handle: BlockHold, now: float, blocks: int | None = None) -> None:
        """End a hold: its blocks may be evicted again. Ignored if it has already ended.

        Args:
            blocks: only of so many leading blocks, which were read; further ones are then loaded. None = of all.
        """
        self.tick(now)
        if blocks is None:
            self._end(handle)
        else:
            self._read_on(handle, blocks, now)

    def _end(self, hold: BlockHold) -> None:
        for shelf, entry, _server in hold.blocks:
            shelf.give_back(entry)
        hold.blocks.clear()

    # Writers

    def store(self, namespace: str, hashes: Sequence[BlockHash], client: int, now: float) -> StoreReport:
        """Publish blocks of one chain, in its order, each on its primary. May evict other entries.

        Args:
            client: number of the instance that writes.
        Returns: the outcomes, in the words of a live client's report.
        """
        self.tick(now)
        nbytes = self._block_bytes
        if self._silent:
            until = reserve_deadline(now, now + self._put_timeout_s)
            asked = dict.fromkeys(name for name in self._members.ring.primaries(hashes) if name is not None)
            silent, _end = self._silent.ask((client, True), asked, now, until)
            routes = self._routes_around(namespace, silent)
        else:
            routes = self._routes_in(namespace)
        done = routes.store(hashes, nbytes, client, now)
        if self._with_ssd:
            for server in done.servers:
                self._members.work(self._members.processes()[server], now)
        counted = self._counted
        counted.stored += done.stored
        counted.present += done.present
        counted.dropped += len(hashes) - done.stored - done.present
        counted.stored_bytes += done.stored * nbytes
        return StoreReport(done.stored, done.present, tuple(sorted(done.dropped.items())), done.stored * nbytes)

    # Routes

    def _routes_in(self, namespace: str) -> ShelfRoutes:
        members = self._members
        if self._routes_of != members.changes:
            self._routes_of = members.changes
            self._routes.clear()
        routes = self._routes.get(namespace)
        if routes is None:
            shelves = {name: server.shelf(namespace) for name, server in members.up.items()}
            routes = self._routes[namespace] = ShelfRoutes(members.ring, shelves, members.steady)
        return routes

    def _routes_around(self, namespace: str, silent: Mapping[str, MissReason]) -> ShelfRoutes:
        """Routes of a client without the silent servers, but with frozen ones that resume in time."""
        members = self._members
        shelves = {name: one.shelf(namespace) for name, one in members.processes().items() if name not in silent}
        return ShelfRoutes(members.ring, shelves, members.steady, silent)

    # Servers

    def add_server(self, now: float, name: str | None = None) -> str:
        """Start one server: the replacement of the one that was lost first, with its SSD folder, or a new one.

        Its share grows over `ramp_s`; entries start to move.

        Args:
            name: of the lost server to replace; None = the first one.
        Returns: its name.
        Raises: ConfigError if a server of this name exists.
        """
        self.tick(now)
        return self._members.add(now, name)

    def remove_server(self, name: str, now: float) -> None:
        """Drain a server: it first hands its entries to the others, for at most `drain_s`.

        Raises: ConfigError if there is no such server, or it drains already.
        """
        self.tick(now)
        self._members.remove(name, now)

    def lose_server(self, name: str, now: float, keeps_ssd: bool = True) -> None:
        """Kill a server. The ring drops it only after some seconds, during which its blocks are misses.

        Args:
            keeps_ssd: its replacement, of the same name, finds its SSD folder.
        Raises: ConfigError if there is no such server.
        """
        self.tick(now)
        self._members.lose(name, now, keeps_ssd)

    def freeze_server(self, name: str, now: float, until: float) -> int:
        """Suspend a server's process, for `thaw_server` to resume. In between it may be lost and replaced.

        Clients wait for it once, until their deadline. The ring drops it when it has been silent for some seconds, and
        takes it back with all its entries when it resumes.

        Args:
            until: when it resumes; infinite = never.
        Returns: its incarnation.
        Raises: ConfigError if there is no such server.
        """
        self.tick(now)
        return self._members.freeze(name, now, until)

    def thaw_server(self, name: str, incarnation: int, now: float) -> None:
        """Resume a frozen server. Ignored if that process no longer exists."""
        self.tick(now)
        self._members.thaw(name, incarnation, now)

    def is_frozen(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation is frozen now."""
        return self._members.is_frozen(name, incarnation)

    def runs(self, name: str) -> bool:
        """Whether a process of this name exists, frozen or not."""
        return name in self._members.up or name in self._silent.frozen

    # Time

    def tick(self, now: float) -> None:
        """Carry out all timed events up to now: ends of holds, ramp steps, migration, disk work. Cheap without any.

        Every other method calls it first.
        """
        holds = self._holds
        while holds and (holds[0].until <= now or not holds[0].blocks):
            hold = holds.popleft()
            if hold.blocks:
                if self._timers.due <= hold.until:
                    self._members.advance(hold.until)
                self._counted.holds_expired += 1
                self._end(hold)
        if self._timers.due <= now:
            self._members.advance(now)

    def next_tick(self) -> float | None:
        """When `tick` is due; None = no timed event is pending."""
        due = min(self._timers.due, self._holds[0].until if self._holds else NEVER)
        return due if due < NEVER else None

    # Knowledge

    def servers(self) -> tuple[ServerFacts, ...]:
        """The servers of the ring, by name."""
        return self._members.facts()

    def active(self) -> list[str]:
        """Servers that respond and do not drain, in the order in which they joined."""
        return [name for name, server in self._members.up.items() if server.state is not ServerState.DRAINING]

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Used memory of all servers, and all of it."""
        return self._members.memory_bytes()

    @property
    def counters(self) -> PoolCounters:
        """Counters so far, summed over all servers there ever were."""
        return self._counted + self._members.counters()

    def check(self) -> None:
        """Prove that every ledger balances and that every leased entry has a hold. O(entries).

        Raises: LedgerError if not.
        """
        lent = {entry.version for hold in self._holds for _shelf, entry, _server in hold.blocks}
        for server in self._members.up.values():
            server.manager.check()
            held = lent | self._members.leased(server.name)
            for view in server.manager.entries():
                if view.leased != (view.version in held):
                    raise LedgerError(f"version {view.version} of {server.name} is lent wrongly")
